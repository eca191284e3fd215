/** Fields of a policy. An empty field restricts nothing. */
import type { Signal } from "@preact/signals";
import { models, ofKind } from "../data/models";
import { type Field, namesOf, type Policy, RATES, textOf, TEXTS, USE } from "../data/policy";
import { Select } from "./ui";

const EFFORTS = ["none", "low", "medium", "high", "max"];

/** Limits per minute and per request. */
export function RateFields(props: { policy: Signal<Policy> }) {
  return (
    <fieldset>
      <legend>Rates</legend>
      <div class="fields three">
        {RATES.map((field) => (
          <OneField key={field.name} field={field} policy={props.policy} />
        ))}
      </div>
    </fieldset>
  );
}

/** Fields that restrict models, workers and tools, and the handling of texts. */
export function PolicyFields(props: { policy: Signal<Policy> }) {
  return (
    <details class="policy">
      <summary>Policy: models, workers, plans and texts</summary>
      <fieldset>
        <legend>May use</legend>
        <div class="fields two">
          {USE.map((field) => (
            <OneField key={field.name} field={field} policy={props.policy} />
          ))}
        </div>
      </fieldset>
      <fieldset>
        <legend>Texts</legend>
        <div class="fields">
          {TEXTS.map((field) => (
            <OneField key={field.name} field={field} policy={props.policy} />
          ))}
        </div>
      </fieldset>
    </details>
  );
}

function OneField(props: { field: Field; policy: Signal<Policy> }) {
  const { field } = props;
  const value = props.policy.value[field.name] ?? null;
  const set = (changed: Policy[string]) => (props.policy.value = { ...props.policy.value, [field.name]: changed });
  switch (field.kind) {
    case "yes":
      return (
        <label class="check">
          <input type="checkbox" checked={Boolean(value ?? field.free)} onChange={(event) => set(event.currentTarget.checked)} />
          {field.title}
        </label>
      );
    case "effort":
      return <Select label={field.title} value={String(value ?? "")} options={[["", "any"], ...EFFORTS.map((effort) => [effort, effort] as const)]} onChange={(effort) => set(effort || null)} />;
    case "names":
      return field.from ? <Choice field={field} value={value} names={offered(field.from)} set={set} /> : <NamesText field={field} value={value} set={set} />;
    case "excluded":
      return (
        <label>
          {field.title}
          <input placeholder="none; names with commas" value={Array.isArray(value) ? value.join(", ") : ""} onChange={(event) => set(namesOf(event.currentTarget.value) ?? [])} />
        </label>
      );
    case "number":
    case "decimal": {
      const read = (text: string) => (field.kind === "number" ? Number(text) : text); // decimals are exact only as texts
      return (
        <label>
          {field.title}
          <input type="number" min="0" step={field.kind === "number" ? "1" : "any"} placeholder="no limit" value={value === null ? "" : String(value)} onInput={(event) => set(event.currentTarget.value.trim() ? read(event.currentTarget.value) : null)} />
        </label>
      );
    }
  }
}

function offered(from: "models" | "workers"): string[] {
  return from === "models" ? models.value.map((each) => each.id) : ofKind("worker").map((each) => each.id);
}

/** Names with commas. The text is read when the user leaves the field. */
function NamesText(props: { field: Field; value: Policy[string]; set: (value: string[] | null) => void }) {
  return (
    <label>
      {props.field.title}
      <input placeholder="any; names with commas, or none" value={textOf(props.value)} onChange={(event) => props.set(namesOf(event.currentTarget.value))} />
    </label>
  );
}

/** Boxes for known names. All of them ticked means any, also those that are added later. */
function Choice(props: { field: Field; value: Policy[string]; names: string[]; set: (value: string[] | null) => void }) {
  const chosen = Array.isArray(props.value) ? props.value : null;
  const names = [...new Set([...props.names, ...(chosen ?? [])])];
  const toggle = (name: string, on: boolean) => {
    const next = names.filter((each) => (each === name ? on : (chosen?.includes(each) ?? true)));
    props.set(next.length === names.length ? null : next);
  };
  return (
    <details class="choice">
      <summary>
        {props.field.title}: <b>{chosen === null ? "any" : chosen.length ? `${chosen.length} of ${names.length}` : "none"}</b>
      </summary>
      <div role="group" aria-label={props.field.title}>
        {names.map((name) => (
          <label class="check" key={name}>
            <input type="checkbox" checked={chosen?.includes(name) ?? true} onChange={(event) => toggle(name, event.currentTarget.checked)} />
            {name}
          </label>
        ))}
      </div>
    </details>
  );
}
