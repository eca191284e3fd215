/** Clock of a running run, which advances between the run's events. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

const EVERY_MS = 100;

/** Return `newest_s`, the time of the newest event, plus the time since that event while `runs` is true. */
export function useClock(newest_s: number, runs: boolean): number {
  const ticks = useSignal(0);
  const newest = useRef({ newest_s, at_ms: performance.now() });
  if (newest.current.newest_s !== newest_s) newest.current = { newest_s, at_ms: performance.now() };
  useEffect(() => {
    if (!runs) return undefined;
    newest.current.at_ms = performance.now();
    const timer = setInterval(() => (ticks.value += 1), EVERY_MS);
    return () => clearInterval(timer);
  }, [runs]);
  if (!runs || ticks.value < 0) return newest_s; // reads the signal, so that each tick draws again
  return newest_s + (performance.now() - newest.current.at_ms) / 1000;
}
