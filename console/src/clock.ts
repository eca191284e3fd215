/** Seconds that go on between the events that tell them. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

const EVERY_MS = 100;

/** `told_s`, and the time since it was told while `runs`. */
export function useClock(told_s: number, runs: boolean): number {
  const since_s = useSignal(0);
  useEffect(() => {
    since_s.value = 0;
    if (!runs) return undefined;
    const began = performance.now();
    const timer = setInterval(() => (since_s.value = (performance.now() - began) / 1000), EVERY_MS);
    return () => clearInterval(timer);
  }, [told_s, runs]);
  return told_s + since_s.value;
}
