import assert from "node:assert/strict";
import { test } from "node:test";
import { type ServerEvent, parse, read } from "../src/data/frames.ts";

const event = (id: string, data: string, name = "message"): ServerEvent => ({ id, name, data });

function body(...pieces: string[]): ReadableStream<Uint8Array> {
  const bytes = new TextEncoder();
  return new ReadableStream({
    start(controller) {
      for (const piece of pieces) controller.enqueue(bytes.encode(piece));
      controller.close();
    },
  });
}

async function all(stream: ReadableStream<Uint8Array>): Promise<ServerEvent[]> {
  const found: ServerEvent[] = [];
  for await (const each of read(stream)) found.push(each);
  return found;
}

test("fields of a frame, several lines of data, comments", () => {
  assert.deepEqual(parse("id: 7\nevent: end\ndata: a\ndata:b"), event("7", "a\nb", "end"));
  assert.equal(parse(": still there"), null);
  assert.equal(parse(""), null);
});

test("events are whole however the network cuts them", async () => {
  const text = 'id: 1\ndata: {"ä": 1}\n\n: still there\n\nid: 2\r\ndata: x\r\n\r\nevent: end\ndata: z\n\n';
  const whole = await all(body(text));
  assert.deepEqual(whole, [event("1", '{"ä": 1}'), event("2", "x"), event("", "z", "end")]);
  assert.deepEqual(await all(body(...text)), whole);
});

test("what is cut off is no event: it comes again when the feed is taken up", async () => {
  assert.deepEqual(await all(body("id: 1\ndata: a\n\nid: 2\ndata: b\n")), [event("1", "a")]);
});
