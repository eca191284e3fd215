// The Node SDKs as the table's clients. A line of JSON on standard input says {client, url, key, ask}; the last line of
// standard output is what was seen. Before each request after the first it prints "next" and reads where to ask now.
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, jsonSchema, Output, stepCountIs, streamText, tool } from 'ai';
import readline from 'node:readline';

globalThis.AI_SDK_LOG_WARNINGS = false;
const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const read = async () => (await lines.next()).value;
const next = async () => { console.log('next'); return read(); };
const CITY = {
  type: 'object', properties: { city: { type: 'string', enum: ['Rome', 'Oslo'] } }, required: ['city'], additionalProperties: false };
const result = (name, args) => `${name} of ${args.city}`;
// What a request has besides its words: `most` is the name of the bound on the answer, `forced` says "call a tool".
const options = (ask, turn, most, forced) => (
  { ...(ask.most && { [most]: ask.most }), ...(turn < (ask.must_call ?? 0) && { tool_choice: forced }) });
const firstWord = text => text.trim().split(/\s+/)[0];

async function chat(url, key, ask, seen) {
  const picture = { type: 'image_url', image_url: { url: `data:image/png;base64,${ask.image}` } };
  const content = ask.image ? [{ type: 'text', text: ask.text }, picture] : ask.text;
  const body = { model: ask.model, messages: [{ role: 'user', content }] };
  if (ask.tools.length) body.tools = ask.tools.map(name => ({ type: 'function', function: { name, parameters: CITY } }));
  if (ask.schema) body.response_format = { type: 'json_schema', json_schema: { name: 'it', strict: true, schema: ask.schema } };
  for (;;) {
    const asked = { ...body, ...options(ask, seen.turns.length, 'max_completion_tokens', 'required') };
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
    if (ask.leave)
      for await (const chunk of await client.chat.completions.create({ ...asked, stream: true }))
        if (chunk.choices[0]?.delta.content) return firstWord(chunk.choices[0].delta.content);
    const said = ask.stream
      ? await client.chat.completions.stream(asked).finalMessage()
      : (await client.chat.completions.create(asked)).choices[0].message;
    if (!said.tool_calls?.length) return said.content;
    seen.turns.push(said.tool_calls.map(call => call.function.name));
    body.messages.push(said, ...said.tool_calls.map(call => (
      { role: 'tool', tool_call_id: call.id, content: result(call.function.name, JSON.parse(call.function.arguments)) })));
    url = await next();
  }
}

async function responses(url, key, ask, seen) {
  const picture = { type: 'input_image', image_url: `data:image/png;base64,${ask.image}` };
  const content = ask.image ? [{ type: 'input_text', text: ask.text }, picture] : ask.text;
  const body = { model: ask.model, store: false, input: [{ role: 'user', content }] };
  if (ask.tools.length) body.tools = ask.tools.map(name => ({ type: 'function', name, parameters: CITY }));
  if (ask.schema) body.text = { format: { type: 'json_schema', name: 'it', strict: true, schema: ask.schema } };
  for (;;) {
    const asked = { ...body, ...options(ask, seen.turns.length, 'max_output_tokens', 'required') };
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
    if (ask.leave)
      for await (const event of await client.responses.create({ ...asked, stream: true }))
        if (event.type === 'response.output_text.delta') return firstWord(event.delta);
    const said = ask.stream ? await client.responses.stream(asked).finalResponse() : await client.responses.create(asked);
    const calls = said.output.filter(item => item.type === 'function_call');
    if (!calls.length) return said.output_text;
    seen.turns.push(calls.map(call => call.name));
    body.input.push(...said.output, ...calls.map(call => (
      { type: 'function_call_output', call_id: call.call_id, output: result(call.name, JSON.parse(call.arguments)) })));
    url = await next();
  }
}

async function messages(url, key, ask, seen) {
  const content = [{ type: 'text', text: ask.text }];
  if (ask.image) content.push({ type: 'image', source: { type: 'base64', media_type: 'image/png', data: ask.image } });
  const body = { model: ask.model, max_tokens: 1000, messages: [{ role: 'user', content }] };
  if (ask.tools.length) body.tools = ask.tools.map(name => ({ name, input_schema: CITY }));
  if (ask.schema) body.output_config = { format: { type: 'json_schema', schema: ask.schema } };
  for (;;) {
    const asked = { ...body, ...options(ask, seen.turns.length, 'max_tokens', { type: 'any' }) };
    const client = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
    if (ask.leave)
      for await (const event of await client.messages.create({ ...asked, stream: true }))
        if (event.type === 'content_block_delta' && event.delta.type === 'text_delta') return firstWord(event.delta.text);
    const said = ask.stream ? await client.messages.stream(asked).finalMessage() : await client.messages.create(asked);
    const calls = said.content.filter(block => block.type === 'tool_use');
    if (!calls.length) return said.content.map(block => block.text ?? '').join('');
    seen.turns.push(calls.map(call => call.name));
    body.messages.push({ role: 'assistant', content: said.content }, { role: 'user', content: calls.map(call => (
      { type: 'tool_result', tool_use_id: call.id, content: result(call.name, call.input) })) });
    url = await next();
  }
}

// The AI SDK runs the tools itself, so where it asks is changed in its `fetch`.
const withAiSdk = make => async (url, key, ask, seen) => {
  let asked = 0;
  const first = url;
  const fetchNext = async (address, options) => {
    if (asked++) url = await next();
    return fetch(String(address).replace(first, url), options);
  };
  const content = [{ type: 'text', text: ask.text }];
  if (ask.image) content.push({ type: 'image', image: ask.image, mediaType: 'image/png' });
  const leave = new AbortController();
  const options = {
    model: make({ baseURL: `${url}/v1`, apiKey: key, fetch: fetchNext, name: 'podium', supportsStructuredOutputs: true }, ask.model),
    messages: [{ role: 'user', content }], maxRetries: 0, stopWhen: stepCountIs(20), maxOutputTokens: ask.most,
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber < (ask.must_call ?? 0) ? 'required' : 'auto' }),
    abortSignal: leave.signal,
    tools: Object.fromEntries(ask.tools.map(name => [name, tool({ inputSchema: jsonSchema(CITY), execute: args => result(name, args) })])),
  };
  if (ask.schema) options.output = Output.object({ schema: jsonSchema(ask.schema) });
  let error;
  const done = ask.stream ? streamText({ ...options, onError: event => { error = event.error; } }) : await generateText(options);
  if (ask.leave)
    for await (const text of done.textStream) if (text.trim()) { leave.abort(); return firstWord(text); }
  if (ask.stream) { await done.consumeStream(); if (error) throw error; }
  for (const each of await done.steps) if (each.toolCalls.length) seen.turns.push(each.toolCalls.map(call => call.toolName));
  return done.text;
};
const CLIENTS = {
  'openai chat': chat, 'openai responses': responses, 'anthropic messages': messages,
  'ai-sdk responses': withAiSdk((o, model) => createOpenAI(o).responses(model)),
  'ai-sdk chat': withAiSdk((o, model) => createOpenAICompatible(o)(model)),
  'ai-sdk messages': withAiSdk((o, model) => createAnthropic(o)(model)),
};

const { client, url, key, ask } = JSON.parse(await read());
const seen = { text: '', turns: [], status: 0 };
try {
  seen.text = await CLIENTS[client](url, key, ask, seen);
} catch (error) {
  seen.status = error.status ?? error.statusCode ?? -1;
  if (seen.status < 0) console.error(error);
}
console.log(JSON.stringify(seen));
process.exit(0);
