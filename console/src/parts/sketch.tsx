/** Drawing of a plan with two parallel steps and one that reads them, for the page before the first question. */

const NODES = [
  [16, 74, "plan"],
  [132, 24, "step"],
  [132, 124, "step"],
  [248, 74, "answer"],
] as const;

export function Sketch() {
  return (
    <svg class="sketch" viewBox="0 0 352 196" width="352" height="196" aria-hidden="true">
      <path d="M104 98C118 98 118 48 132 48M104 98C118 98 118 148 132 148M220 48C234 48 234 98 248 98M220 148C234 148 234 98 248 98" />
      {NODES.map(([x, y, kind], index) => (
        <g key={index} class={kind}>
          <rect x={x} y={y} width="88" height="48" rx="8" />
          <rect class="ink" x={x + 12} y={y + 13} width="34" height="6" rx="3" />
          <rect class="ink thin" x={x + 12} y={y + 28} width={kind === "answer" ? 62 : 50} height="5" rx="2.5" />
        </g>
      ))}
    </svg>
  );
}
