"""Settings that cannot work: doctor, start and reload report the file, line, worker, field and a suggestion."""

import json
import re
from pathlib import Path

import pytest
import yaml

import serving.app
from podium.doctor.cli import main as doctor
from serving.clients import find_faults
from serving.health import Health
from serving.pool import build_pool
from serving.sessions.live_settings import LiveSettings
from serving.settings.engine_arguments import engine_faults
from serving.settings.faults import in_file
from serving.settings.settings import SettingsError, load, parse
from serving.settings.source import SettingsSource
from serving.settings.workers import VllmSettings
from tests.serving.api.served import served

A = "{name: a, kind: scripted}"
PHRASES = re.compile(
    r"Input should|Value error|Field required|Extra inputs|valid (string|integer|number)|pydantic|should match pattern|expected tags|discriminator|at least \d+ items? after"
)


def api(fields: str, kind: str = "openai") -> str:
    return f"workers:\n  - {A}\n  - name: gpt\n    kind: {kind}\n    model: m\n    {fields}\n"


IN_WORKER: list[tuple[str, str, list[str]]] = [
    # Settings, the field at fault, and parts of the message.
    ("base_url: 127.0.0.1:8313", "base_url", ["must begin with http:// or https://", "Did you mean 'http://127.0.0.1:8313'?"]),
    ("base_url: localhost:8313/v1", "base_url", ["Did you mean 'http://localhost:8313/v1'?"]),
    ("base_url: //10.0.0.7/v1", "base_url", ["Did you mean 'http://10.0.0.7/v1'?"]),
    ("base_url: api.example.com/v1", "base_url", ["Did you mean 'https://api.example.com/v1'?"]),
    ("base_url: htps://api.example.com/v1", "base_url", ["Did you mean 'https://api.example.com/v1'?"]),
    ("base_url: 'http:/api.example.com'", "base_url", ["Did you mean 'https://api.example.com'?"]),
    ("base_url: ftp://h/v1", "base_url", ["must begin with http:// or https://"]),
    ("base_url: 'http://'", "base_url", ["must begin with http:// or https://"]),
    ("base_url: ''", "base_url", ["must begin with http:// or https://"]),
    ("base_url: http://h:99999/v1", "base_url", ["is not a valid URL"]),
    ("base_url: http://h:port/v1", "base_url", ["is not a valid URL"]),
    ("base_url: 'http://[::1/v1'", "base_url", ["is not a valid URL"]),
    ("base_url: 'http://h/v1 '", "base_url", ["must not contain spaces"]),
    ("base_url: https://h/v1/chat/completions", "base_url", ["must not end with '/chat/completions'", "Did you mean 'https://h/v1'?"]),
    ("base_url: 7", "base_url", ["must be text"]),
    ("api_key_env: sk-proj-planted-5f2", "api_key_env", ["must be the name of an environment variable"]),
    ("api_key_env: MY KEY", "api_key_env", ["must be the name of an environment variable"]),
    ("effort: hihg", "effort", ["must be ", "Did you mean 'high'?"]),
    ("basurl: http://h", "basurl", ["is not a known setting", "Did you mean 'base_url'?"]),
    ("max_concurency: 3", "max_concurency", ["Did you mean 'max_concurrency'?"]),
    ("retry: {atempts: 3}", "retry.atempts", ["Did you mean 'attempts'?"]),
    ("price: {input_usd_per_mtok: 1, output_usd_per_mtok: 2, cachd_input_usd_per_mtok: 1}", "price.cachd_input_usd_per_mtok", ["Did you mean 'cached_input_usd_per_mtok'?"]),
    ("deployments: [{name: x, wieght: 2}]", "deployments[0].wieght", ["Did you mean 'weight'?"]),
    ("deployments: [{name: x, base_url: 'h:1'}]", "deployments[0].base_url", ["Did you mean 'http://h:1'?"]),
    ("max_concurrency: 0", "max_concurrency", ["must be at least 1"]),
    ("max_concurrency: many", "max_concurrency", ["must be a whole number"]),
    ("max_concurrency: 1.5", "max_concurrency", ["must be a whole number"]),
    ("temperature: hot", "temperature", ["must be a number"]),
    ("temperature: 3", "temperature", ["must be at most 2"]),
    ("connect_timeout_s: .inf", "connect_timeout_s", ["must be a finite number"]),
    ("optional: perhaps", "optional", ["must be true or false"]),
    ("extra_body: [1]", "extra_body", ["must be a mapping"]),
    ("serves: []", "serves", ["must have at least 1 entry"]),
    ("serves: [chats]", "serves[0]", ["Did you mean 'chat'?"]),
    ("region: 7", "region", ["must be text"]),
    ("on_broken_stream: tel", "on_broken_stream", ["must be 'continue' or 'tell'", "Did you mean 'tell'?"]),
    ("retry: 3", "retry", ["must be a mapping"]),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "place", "words"), IN_WORKER, ids=[each[0] for each in IN_WORKER])
def test_a_worker_fault_names_file_line_worker_field_and_a_suggestion(
    tmp_path: Path, fields: str, place: str, words: list[str]
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(api(fields))
    with pytest.raises(SettingsError) as caught:
        load(path)
    message = caught.value.message
    assert message.startswith(f"{path} cannot be used: line 6, worker 'gpt': workers[1].{place} ")
    assert all(each in message for each in words), message
    assert not PHRASES.search(message)
    assert "planted" not in message


WHOLE: list[tuple[str, int, str]] = [
    (f"workers:\n  - {A}\n  - {A}\n", 3, "Two workers are named 'a'"),
    (f"workers:\n  - {A}\nmodels:\n  mini: {{}}\n", 3, "`models` require a `conductor`"),
    (f"workers:\n  - {A}\nconductor:\n  worker: aa\n", 4, "Did you mean 'a'?"),
    (f"workers:\n  - {A}\n  - name: b\n    kind: scripted\n    fallbacks: [aa]\n", 5, "worker 'b': fallbacks names"),
    (f"conductor: {{worker: a}}\nworkers:\n  - {A}\nmodels:\n  mini:\n    max_steps: 3\n    workers: [b]\n", 7, "models.mini.workers names"),
    (f"conductor: {{worker: a}}\nworkers:\n  - {A}\nmodels:\n  mini:\n    workers: []\n", 6, "must have at least 1"),
    ("conductor: {worker: a}\nworkers:\n  - {name: a, kind: scripted, in_pool: false}\nmodels:\n  mini: {}\n", 4, "`models` require a worker that plans may use"),
    (f"workers:\n  - {A}\nworkflows:\n  duo:\n    - worker: a\n    - worker: a\n      access: [1]\n", 6, "workflows.duo[1].access"),
    (f"workers:\n  - {A}\nworkflows:\n  duo: [{{worker: z}}]\n", 4, "workflows.duo names"),
    (f"workers:\n  - {A}\nlimits:\n  hearbeat_s: 1\n", 4, "Did you mean 'heartbeat_s'?"),
    (f"workers:\n  - {A}\nlimts:\n  heartbeat_s: 1\n", 3, "Did you mean 'limits'?"),
    ("workers:\n  - name: a\n    kind: opnai\n    model: m\n", 2, "Did you mean 'openai'?"),
    ("workers:\n  - name: a\n    model: m\n", 2, "must have a `kind`"),
    ("workers:\n  - kind: scripted\n", 2, "workers[0].name is missing"),
    ("workers:\n  - name: a b\n    kind: scripted\n", 2, "begin with a letter or digit"),
    (f"workers:\n  - {A}\n  - name: p\n    kind: python\n    factory: my_team.search\n", 5, "package.module:callable"),
    (f"workers:\n  - {A}\nhttp:\n  origins: [app.example.com]\n", 4, "Did you mean 'https://app.example.com'?"),
    (f"workers:\n  - {A}\nhttp:\n  origins: ['https://app.example.com/']\n", 4, "Did you mean 'https://app.example.com'?"),
    (f"workers:\n  - {A}\nhttp:\n  hosts: ['https://podium.example.com']\n", 4, "Did you mean 'podium.example.com'?"),
    (f"workers:\n  - {A}\nhttp:\n  hosts: ['podium.example.com:8000']\n", 4, "Did you mean 'podium.example.com'?"),
    (f"workers:\n  - {A}\nwebhooks:\n  url: hooks.example.com\n", 4, "must be an https:// URL"),
    (f"workers:\n  - {A}\nwebhooks:\n  secret_env: whsec_abc=\n", 4, "must be the name of an environment variable"),
    (f"workers:\n  - {A}\nstore:\n  url_env: postgresql://u:planted@h/d\n", 4, "must be the name of an environment variable"),
    (f"workers:\n  - {A}\nconductor:\n  worker: a\nconductor:\n  worker: a\n", 5, "`conductor` is already set on line 3"),
    ("workers:\n  - name: a\n    kind: scripted\n    card: x\n    card: y\n", 5, "`card` is already set on line 4"),
    ("workers:\n  - name: a\n   kind: scripted\n", 3, "is not valid YAML"),
    ("workers: 7\n", 1, "must be a list"),
    ("7\n", 0, "must be a mapping"),
    ("", 0, "must be a mapping"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "words"), WHOLE, ids=[each[2] for each in WHOLE])
def test_a_fault_elsewhere_names_file_line_and_a_suggestion(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(path)
    message = caught.value.message
    assert words in message
    assert message.startswith(str(path))
    assert not line or re.search(rf"\bline {line}\b", message), message
    assert not PHRASES.search(message)
    assert "planted" not in message


def test_an_anchor_used_twice_is_not_a_repeated_key(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(
        "workers: [&a {name: a, kind: scripted, card: x}, {<<: *a, name: b}, {<<: *a, name: c}]\n"
    )
    assert load(path).pool == ["a", "b", "c"]


HERE: dict[str, tuple[str, int, list[str]]] = {
    "no webhook secret": (
        f"workers:\n  - {A}\nwebhooks:\n  url: https://h.example.com/x\n", 3, ["PODIUM_WEBHOOK_SECRET", "openssl rand"],
    ),
    "no such plugin": (
        f"workers:\n  - {A}\n  - name: p\n    kind: python\n    factory: no_such_package.search:Search\n",
        5, ["worker 'p'", "cannot be imported", "no_such_package", "Install its package"],
    ),
    "a plugin that breaks when it is imported": (
        f"workers:\n  - {A}\n  - name: p\n    kind: python\n    factory: broken_plugin_of_a_test:Search\n",
        5, ["worker 'p'", "cannot be imported", "RuntimeError: no licence"],
    ),
    "a plugin without the function": (
        f"workers:\n  - {A}\n  - name: p\n    kind: python\n    factory: tests.serving.api.tool_caller:ToolCallr\n",
        5, ["worker 'p'", "has no function or class 'ToolCallr'", "Did you mean 'ToolCaller'?"],
    ),
    "a plugin's options": (
        f"workers:\n  - {A}\n  - name: p\n    kind: python\n    factory: tests.serving.api.tool_caller:ToolCaller\n    options: {{colour: red}}\n",
        6, ["worker 'p'", "rejects its options", "colour"],
    ),
    "a plugin that is no worker": (
        f"workers:\n  - {A}\n  - name: p\n    kind: python\n    factory: no_worker_of_a_test:make\n", 5, ["worker 'p'", "no `open` method"],
    ),
    "no key": (
        f"workers:\n  - {A}\n  - name: gpt\n    kind: openai\n    model: m\n    api_key_env: PODIUM_TEST_NONE\n", 6, ["gpt", "PODIUM_TEST_NONE"],
    ),
    "no credentials": (
        f"workers:\n  - {A}\n  - {{name: g, kind: gemini, model: m, service: vertex, region: eu, project: p,\n    credentials_file: /nowhere/at.json}}\n", 4, ["'g'", "/nowhere/at.json", "cannot be read"],
    ),
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "broken_plugin_of_a_test.py").write_text("raise RuntimeError('no licence')")
    (tmp_path / "no_worker_of_a_test.py").write_text("def make(name, price):\n    return 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PODIUM_STORE_URL", f"sqlite:///{tmp_path / 'podium.db'}")
    for name in ("PODIUM_WEBHOOK_SECRET", "PODIUM_TEST_NONE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "settings.yaml"


@pytest.mark.parametrize(("text", "line", "words"), HERE.values(), ids=HERE.keys())
def test_missing_files_and_variables_are_reported_before_the_start(
    place: Path, text: str, line: int, words: list[str]
) -> None:
    place.write_text(text)
    with pytest.raises(SettingsError) as caught:
        serving.app.build_app({"settings": str(place)})
    assert caught.value.message.startswith(f"{place}, line {line}: ")
    assert all(each in caught.value.message for each in words), caught.value.message


@pytest.mark.parametrize(("text", "line", "expected_words"), HERE.values(), ids=HERE.keys())
def test_the_doctor_finds_missing_files_and_variables(
    place: Path, capsys: pytest.CaptureFixture[str], text: str, line: int, expected_words: list[str]
) -> None:
    place.write_text(text)
    assert doctor(["--settings", str(place), "--json", *SKIPPED]) == 1
    findings = [json.loads(each) for each in capsys.readouterr().out.splitlines()]
    (wrong,) = [
        each for each in findings if each["check"] in ("keys", "workers") and each["level"] == "wrong"
    ]
    words = f"{wrong['said']} {wrong['remedy']}"
    assert all(each in words for each in expected_words), words
    assert f"line {line}: " in words


SKIPPED = [
    part
    for name in ("processes", "session", "haproxy", "packages", "console", "port", "files")
    for part in ("--skip", name)
]


@pytest.mark.parametrize(("text", "line", "words"), HERE.values(), ids=HERE.keys())
@pytest.mark.real_time
async def test_a_reload_reports_missing_files_and_variables_in_the_same_words(
    place: Path, text: str, line: int, words: list[str]
) -> None:
    sound = yaml.safe_load(f"workers: [{A}]")
    place.write_text(text)  # noqa: ASYNC240
    async with served(sound) as it:
        follows = LiveSettings(
            it.service,
            parse(sound),
            lambda new: build_pool(new, {}, {}, Health()),
            SettingsSource.of(place, None, None),
        )
        with pytest.raises(SettingsError) as caught:
            await follows.reload()
        assert it.service.refused == caught.value.message
        assert caught.value.message.startswith(f"{place}, line {line}: ")
        assert all(each in caught.value.message for each in words)
        await it.ok({"model": "a"})


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("max_model_length: 4096", "Did you mean 'max_model_len'?"),
        ("max-model-len: 4096", "Did you mean 'max_model_len'?"),
        ("gpu_mem_utilization: 0.5", "Did you mean 'gpu_memory_utilization'?"),
        ("tool_cal_parser: hermes", "Did you mean 'tool_call_parser'?"),
        ("Dtype: float16", "Did you mean 'dtype'?"),
    ],
)
async def test_an_unknown_engine_argument_is_a_fault(tmp_path: Path, field: str, words: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(
        f"workers:\n  - name: own\n    kind: vllm\n    model: m\n    engine:\n      enforce_eager: true\n      {field}\n"
    )
    [fault] = await find_faults(load(path), {})
    message = in_file(fault, path).message
    assert message.startswith(f"{path}, line 7: `engine.")
    assert message.endswith(f"is not an engine argument of vLLM. {words}")


@pytest.mark.parametrize("path", ["cluster/local.yaml", "cluster/gpu.yaml"])
def test_shipped_settings_use_known_engine_arguments(path: str) -> None:
    assert [
        fault
        for each in load(path).workers
        if isinstance(each, VllmSettings)
        for fault in engine_faults(each)
    ] == []
