/** Names that `model` accepts, as in `GET /v1/models`. */
import { signal } from "@preact/signals";
import { get } from "./api";
import { dollars, largest } from "./format";

export type Circuit = "closed" | "open" | "half_open";

export interface ModelInfo {
  id: string;
  podium: {
    kind: "conductor" | "workflow" | "worker";
    card?: string;
    /** Dollars per million tokens, or null if the price is unknown. */
    price?: { input_usd_per_mtok: number; output_usd_per_mtok: number } | null;
    sees_images?: boolean;
    reads_pdfs?: boolean;
    calls_tools?: boolean;
    in_pool?: boolean;
    /** Operations: `chat` or `embeddings`. */
    serves?: string[];
    model?: string;
    provenance?: string | null;
    /** LoRA adapter of the worker, or null if it uses none. */
    adapter?: string | null;
    /** State of the worker's circuit breaker. It gets no calls while the circuit is open. */
    circuit?: Circuit;
    conductor?: { worker: string; model: string };
  };
}

export const models = signal<ModelInfo[]>([]);

export async function loadModels(): Promise<ModelInfo[]> {
  models.value = (await get<{ data: ModelInfo[] }>("/v1/models")).data;
  return models.value;
}

export function ofKind(kind: ModelInfo["podium"]["kind"]): ModelInfo[] {
  return models.value.filter((each) => each.podium.kind === kind);
}

export function priceOf(worker: ModelInfo): string {
  const price = worker.podium.price;
  if (!price) return "price unknown";
  if (!price.input_usd_per_mtok && !price.output_usd_per_mtok) return "free";
  const most = largest([price.input_usd_per_mtok, price.output_usd_per_mtok]);
  return `${dollars(price.input_usd_per_mtok, most)} in, ${dollars(price.output_usd_per_mtok, most)} out per million tokens`;
}
