/** Format amounts, durations, counts, times and short texts. */

/** Format an amount of money in dollars, or in cents if it is below a dollar.
 *
 * @param most largest of the amounts that are shown together, so that all have the same unit.
 */
export function dollars(amount: number | null | undefined, most = 0): string {
  if (amount === null || amount === undefined) return "unknown";
  if (amount === 0) return "free";
  const sign = amount < 0 ? "−" : "";
  const size = Math.abs(amount);
  if (Math.max(size, most) >= 1) return size < 0.005 ? `${sign ? ">" : "<"}${sign}$0.01` : `${sign}$${size.toFixed(2)}`;
  const cents = size * 100;
  return `${sign}${cents >= 0.1 ? cents.toFixed(2) : cents.toPrecision(2)} ¢`;
}

/** Format a sum of money, which may be nothing. See `dollars`. */
export function sum(amount: number, most = 0): string {
  if (amount) return dollars(amount, most);
  return most > 0 && most < 1 ? "0 ¢" : "$0";
}

/** Return the largest amount without its sign, for `dollars`. */
export function largest(amounts: readonly (number | null)[]): number {
  return amounts.reduce<number>((most, amount) => Math.max(most, Math.abs(amount ?? 0)), 0);
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

/** Format a large number in few characters, such as 12.3K. */
export function compact(n: number): string {
  return n.toLocaleString("en", { notation: "compact", maximumFractionDigits: n < 10 ? 2 : 1 });
}

export function percent(share: number | null | undefined): string {
  if (share === null || share === undefined) return "–";
  const value = 100 * share;
  return `${value === 0 || value >= 10 ? value.toFixed(0) : value.toFixed(1)} %`;
}

/** Say which share of the input came from the provider's cache and what that saved, or "" if nothing did. */
export function cacheWords(of: { cached_share: number | null; saved_usd: number | null }): string {
  if (!of.cached_share && !of.saved_usd) return "";
  const saved = of.saved_usd ? `, ${of.saved_usd > 0 ? "saved" : "cost"} ${dollars(Math.abs(of.saved_usd))}${of.saved_usd > 0 ? "" : " to write"}` : "";
  return `${percent(of.cached_share)} cached${saved}`;
}

export function when(unix_s: number): string {
  return new Date(1000 * unix_s).toLocaleString();
}

/** Format a time in ISO 8601 in few characters. */
export function stamp(iso: string): string {
  return new Date(iso).toLocaleString(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

/** Say how long ago a time was, or its date if that was more than a day ago. */
export function ago(unix_s: number, now_s: number): string {
  const s = Math.max(0, now_s - unix_s);
  if (s < 10) return "just now";
  if (s < 60) return `${Math.floor(s)} s ago`;
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ago`;
  return new Date(1000 * unix_s).toLocaleDateString(undefined, { day: "numeric", month: "short", year: "numeric" });
}

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

/** Return the start of `text` as one line of at most `most` characters. */
export function brief(text: string, most: number): string {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}
