/** Light or dark colours: those of the system, or the user's choice. Only a choice is stored. */
import { signal } from "@preact/signals";

export type Theme = "auto" | "light" | "dark";
const STORAGE_KEY = "podium.theme";
export const THEMES: readonly Theme[] = ["auto", "light", "dark"];

function storedTheme(): Theme {
  const theme = localStorage.getItem(STORAGE_KEY);
  return theme === "light" || theme === "dark" ? theme : "auto";
}

export const theme = signal<Theme>(storedTheme());

function apply(): void {
  document.documentElement.dataset.theme = theme.value;
}

export function chooseTheme(choice: Theme): void {
  theme.value = choice;
  if (choice === "auto") localStorage.removeItem(STORAGE_KEY);
  else localStorage.setItem(STORAGE_KEY, choice);
  apply();
}

apply();
