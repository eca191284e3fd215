// A tool through Chat Completions, with OpenAI's Node SDK.
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: `${process.env.PODIUM_URL ?? 'http://127.0.0.1:8000'}/v1`, apiKey: 'none' });
const parameters = { type: 'object', properties: { city: { type: 'string' } } };
const tools = [{ type: 'function', function: { name: 'weather', parameters } }];

const messages = [{ role: 'user', content: 'What is the weather in Rome?' }];
for (;;) {
  const said = await client.chat.completions.stream({ model: 'podium-mini', messages, tools }).finalMessage();
  messages.push(said);
  if (!said.tool_calls?.length) { console.log(said.content); break; }
  for (const call of said.tool_calls) {
    const { city } = JSON.parse(call.function.arguments);
    messages.push({ role: 'tool', tool_call_id: call.id, content: `sunny in ${city}` });
  }
}
