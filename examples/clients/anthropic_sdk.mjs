// A tool through Messages, with Anthropic's Node SDK.
import Anthropic from '@anthropic-ai/sdk';

const client = new Anthropic({ baseURL: process.env.PODIUM_URL ?? 'http://127.0.0.1:8000', apiKey: 'none' });
const tools = [{ name: 'weather', input_schema: { type: 'object', properties: { city: { type: 'string' } } } }];

const messages = [{ role: 'user', content: 'What is the weather in Rome?' }];
for (;;) {
  const said = await client.messages.stream({ model: 'podium-mini', max_tokens: 1000, messages, tools }).finalMessage();
  messages.push({ role: 'assistant', content: said.content });
  const calls = said.content.filter(block => block.type === 'tool_use');
  if (!calls.length) { console.log(said.content.map(block => block.text ?? '').join('')); break; }
  const content = calls.map(call => ({ type: 'tool_result', tool_use_id: call.id, content: `sunny in ${call.input.city}` }));
  messages.push({ role: 'user', content });
}
