/** Clock of a running run, which advances between the run's events. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

const EVERY_MS = 100;

/** Return `told_s`, the time of the newest event, plus the time since that event while `runs` is true. */
export function useClock(told_s: number, runs: boolean): number {
  const ticks = useSignal(0);
  const told = useRef({ told_s, at_ms: performance.now() });
  if (told.current.told_s !== told_s) told.current = { told_s, at_ms: performance.now() };
  useEffect(() => {
    if (!runs) return undefined;
    told.current.at_ms = performance.now();
    const timer = setInterval(() => (ticks.value += 1), EVERY_MS);
    return () => clearInterval(timer);
  }, [runs]);
  if (!runs || ticks.value < 0) return told_s; // reads the signal, so that each tick draws again
  return told_s + (performance.now() - told.current.at_ms) / 1000;
}
