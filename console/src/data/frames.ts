/** Parse server-sent events from the bytes of a response. */

export interface ServerEvent {
  id: string;
  name: string;
  data: string;
}

/** Yield the events of one response as they arrive. */
export async function* read(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let left = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const frames = (left + value).replaceAll("\r\n", "\n").split("\n\n");
      left = frames.pop() ?? "";
      for (const frame of frames) {
        const event = parse(frame);
        if (event) yield event;
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

/** Parse one frame. Return null if it has no data, such as a comment. */
export function parse(frame: string): ServerEvent | null {
  const event: ServerEvent = { id: "", name: "message", data: "" };
  const data: string[] = [];
  for (const line of frame.split("\n")) {
    const colon = line.indexOf(":");
    if (colon === 0) continue;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") data.push(value);
    else if (field === "event") event.name = value;
    else if (field === "id") event.id = value;
  }
  if (!data.length) return null;
  return { ...event, data: data.join("\n") };
}
