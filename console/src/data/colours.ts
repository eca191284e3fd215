/** Colours of workers, models and strategies. */
import { models } from "./models";

/** Angle between the hues of two workers that follow each other. No two of a pool are alike with it. */
const GOLDEN = 137.508;
const FIRST_HUE = 190;

/** Return the hue of a worker's colour. The same name has the same colour everywhere. Names that are not in the
 * settings have a colour of their letters. */
export function hue(name: string): number {
  const index = models.value.findIndex((each) => each.id === name);
  if (index >= 0) return Math.round(FIRST_HUE + GOLDEN * index) % 360;
  let hash = 2166136261; // FNV-1a, so that names that differ in one letter are far apart
  for (const char of name) hash = Math.imul(hash ^ char.charCodeAt(0), 16777619);
  return Math.round((hash >>> 0) * 0.618034) % 360;
}
