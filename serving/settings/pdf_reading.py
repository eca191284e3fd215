"""Workers that accept PDF files, by their kinds and some models' names. No server is contacted.

https://developers.openai.com/api/docs/guides/pdf-files,
https://platform.claude.com/docs/en/build-with-claude/pdf-support,
https://ai.google.dev/gemini-api/docs/document-processing.
"""

import re

from serving.settings.workers import (
    AnthropicSettings,
    GeminiSettings,
    OpenAISettings,
    VllmSettings,
    WorkerSettings,
)

READ_PDFS = {
    "openai": r"^(gpt-4o|gpt-4\.1|gpt-5|gpt-[6-9]|o1$|o1-20|o3|o4)",
    "anthropic": r"claude-(3-[57]|opus|sonnet|haiku|[4-9])",
    "gemini": r"gemini-",
}
"""Models that read PDFs, by kind."""


def reads_pdfs(worker: WorkerSettings) -> bool:
    """Return whether the worker may be sent a PDF file."""
    if isinstance(worker, VllmSettings):
        return False  # vLLM has no input type for PDFs
    if worker.reads_pdfs is not None:
        return worker.reads_pdfs
    match worker:
        case OpenAISettings() if worker.base_url or worker.deployments:
            return False  # the model behind that server is unknown
        case OpenAISettings() | AnthropicSettings() | GeminiSettings():
            return bool(re.search(READ_PDFS[worker.kind], worker.model.lower()))
        case _:
            return False
