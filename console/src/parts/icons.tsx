/** Icons, drawn as lines of the text's colour. */
import type { ComponentChildren } from "preact";

const PATHS = {
  ask: "M4 5h16v11H9l-5 4z",
  runs: "M4 6h16M4 12h16M4 18h10",
  overview: "M4 20V10M10 20V4M16 20v-7M21 20H3",
  costs: "M12 3a9 9 0 1 0 0 18 9 9 0 1 0 0-18M15 9.5A2.5 1.8 0 0 0 12.5 8h-1a2 2 0 0 0 0 4h1a2 2 0 0 1 0 4h-1A2.5 1.8 0 0 1 9 14.5M12 6.2V8M12 16v1.8",
  pool: "M9 5.5a3 3 0 1 0 6 0 3 3 0 1 0-6 0M3 18a3 3 0 1 0 6 0 3 3 0 1 0-6 0M15 18a3 3 0 1 0 6 0 3 3 0 1 0-6 0M10.7 8.2L7.3 15.3M13.3 8.2l3.4 7.1",
  compare: "M4 4v16h16M8 15a1 1 0 1 0 2 0 1 1 0 1 0-2 0M12 10a1 1 0 1 0 2 0 1 1 0 1 0-2 0M17 7a1 1 0 1 0 2 0 1 1 0 1 0-2 0",
  keys: "M3 16a4 4 0 1 0 8 0 4 4 0 1 0-8 0M10 13L20 3M16 7l3.5 3.5",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  close: "M6 6l12 12M18 6L6 18",
  plus: "M12 5v14M5 12h14",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.5 1.5M17.5 17.5L19 19M19 5l-1.5 1.5M6.5 17.5L5 19",
  moon: "M20 14.5A8 8 0 0 1 9.5 4a8 8 0 1 0 10.5 10.5z",
  auto: "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18",
  user: "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8M4 21c1-4 4-6 8-6s7 2 8 6",
  test: "M6 4l14 8-14 8z",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14M16 16l5 5",
  lock: "M6 11h12v9H6zM8.5 11V8a3.5 3.5 0 0 1 7 0v3",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon(props: { name: IconName }): ComponentChildren {
  return (
    <svg class="icon" viewBox="0 0 24 24" width="18" height="18" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
      <path d={PATHS[props.name]} />
    </svg>
  );
}

/** Podium's mark: three steps of different height. */
export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 24 24" width="22" height="22" aria-hidden="true">
      <path d="M2 13h6v8H2z" opacity="0.55" />
      <path d="M9 6h6v15H9z" />
      <path d="M16 10h6v11h-6z" opacity="0.75" />
    </svg>
  );
}
