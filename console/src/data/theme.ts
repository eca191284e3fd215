/** Light or dark colours: those of the system, or the user's choice. Only a choice is stored. */
import { signal } from "@preact/signals";

export type Theme = "auto" | "light" | "dark";
const KEPT = "podium.theme";
export const THEMES: readonly Theme[] = ["auto", "light", "dark"];

function kept(): Theme {
  const theme = localStorage.getItem(KEPT);
  return theme === "light" || theme === "dark" ? theme : "auto";
}

export const theme = signal<Theme>(kept());

function apply(): void {
  document.documentElement.dataset.theme = theme.value;
}

export function chooseTheme(choice: Theme): void {
  theme.value = choice;
  if (choice === "auto") localStorage.removeItem(KEPT);
  else localStorage.setItem(KEPT, choice);
  apply();
}

apply();
