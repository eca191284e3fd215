/** Server-sent events by `fetch`, because `EventSource` cannot send a key. */
import { ApiError, headers, send } from "./api";
import { type ServerEvent, read } from "./frames";

const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 5000;

/** Yield the events at `path` until the one named `end`. A broken connection is resumed after the last event.
 *
 * @param onState called with whether it is connected.
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
