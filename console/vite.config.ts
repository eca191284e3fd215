import { defineConfig } from "vite";

// Three files with fixed names, so that the server can give them an ETag and nothing else; two builds give
// the same bytes.
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
