import { defineConfig } from "vite";

// The three files have fixed names, so the server needs only an ETag. Builds are reproducible.
export default defineConfig({
  base: "/console/",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    target: "es2022",
    modulePreload: false,
    rolldownOptions: {
      output: { codeSplitting: false, entryFileNames: "console.js", assetFileNames: "console[extname]" },
    },
  },
});
