// A tool with the AI SDK, streamed through Chat Completions.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const baseURL = `${process.env.PODIUM_URL ?? 'http://127.0.0.1:8000'}/v1`;
const podium = createOpenAICompatible({ name: 'podium', baseURL, apiKey: 'none', supportsStructuredOutputs: true });
const weather = tool({ inputSchema: z.object({ city: z.string() }), execute: ({ city }) => `sunny in ${city}` });

const answer = streamText({
  model: podium('podium-mini'), prompt: 'What is the weather in Rome?', tools: { weather }, stopWhen: stepCountIs(10),
});
for await (const text of answer.textStream) process.stdout.write(text);
console.log();
