/** Server-sent events by `fetch`: `EventSource` cannot send a key. */
import { ApiError, headers, send } from "./api";

export interface ServerEvent {
  id: string;
  name: string;
  data: string;
}

const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 5000;

/** The events of one answer, as they come. */
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

/** One frame; none where it is a comment. */
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

/** The events at `path` until the one named `end`; a connection that breaks is taken up where it broke.
 *
 * @param onState told whether it is connected.
 */
export async function* follow(
  path: string,
  signal: AbortSignal,
  onState: (connected: boolean) => void,
): AsyncGenerator<ServerEvent> {
  let last = "";
  let pause = FIRST_PAUSE_MS;
  while (!signal.aborted) {
    try {
      const answer = await send(path, { signal, headers: last ? headers({ "last-event-id": last }) : {} });
      onState(true);
      pause = FIRST_PAUSE_MS;
      for await (const event of read(answer.body!)) {
        if (event.id) last = event.id;
        yield event;
        if (event.name === "end") return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status < 500 && error.status !== 429) throw error;
    }
    onState(false);
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
  }
}
