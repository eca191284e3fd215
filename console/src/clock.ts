/** Seconds that go on between the events that tell them. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

const EVERY_MS = 100;

/** `told_s`, and the time since it was told while `runs`. */
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
