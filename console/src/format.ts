/** Format amounts, durations, counts, times and short texts. */

export function dollars(amount: number | null | undefined): string {
  if (amount === null || amount === undefined) return "unknown";
  if (amount === 0) return "free";
  if (amount >= 1) return `$${amount.toFixed(2)}`;
  const cents = amount * 100;
  return cents >= 0.1 ? `${cents.toFixed(2)} ¢` : `${cents.toPrecision(2)} ¢`;
}

export function seconds(s: number | null | undefined): string {
  if (s === null || s === undefined) return "";
  if (s < 1) return `${Math.round(1000 * s)} ms`;
  if (s < 100) return `${s.toFixed(s < 10 ? 2 : 1)} s`;
  const whole = Math.round(s);
  return `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

export function count(n: number | null | undefined): string {
  return n === null || n === undefined ? "" : n.toLocaleString("en");
}

export function when(unix_s: number): string {
  return new Date(1000 * unix_s).toLocaleString();
}

/** Return the start of `text` as one line of at most `most` characters. */
export function brief(text: string, most: number): string {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}
