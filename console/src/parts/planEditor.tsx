/** Editor of a plan: the worker and the task of each step, and the steps that it reads. */
import { type Signal, useSignal } from "@preact/signals";
import { Select } from "./ui";

export interface PlannedStep {
  worker: string;
  subtask: string;
  access: number[];
}

export function PlanEditor(props: { steps: Signal<PlannedStep[]>; workers: string[] }) {
  const steps = props.steps.value;
  const dragged = useSignal<number | null>(null);
  const change = (index: number, facts: Partial<PlannedStep>) => {
    props.steps.value = steps.map((step, each) => (each === index ? { ...step, ...facts } : step));
  };
  /** Let a later step read an earlier one that was dragged onto it. The buttons do the same by keyboard. */
  const read = (earlier: number | null, later: number) => {
    const access = steps[later]?.access ?? [];
    if (earlier !== null && earlier < later && !access.includes(earlier)) change(later, { access: [...access, earlier].sort((a, b) => a - b) });
  };
  const drop = (index: number) => {
    const moved = (read: number) => (read > index ? read - 1 : read);
    props.steps.value = steps
      .filter((_, each) => each !== index)
      .map((step) => ({ ...step, access: step.access.filter((read) => read !== index).map(moved) }));
  };
  return (
    <fieldset class="plan-editor">
      <legend>Plan</legend>
      <ol>
        {steps.map((step, index) => (
          <li
            key={index}
            onDragOver={(event) => dragged.value !== null && dragged.value < index && event.preventDefault()}
            onDrop={(event) => {
              event.preventDefault();
              read(dragged.value, index);
            }}
          >
            <span
              class="grip"
              draggable
              title="Drag this onto a later step that should read it"
              onDragStart={(event) => {
                dragged.value = index;
                event.dataTransfer?.setData("text/plain", `step ${index + 1}`);
              }}
              onDragEnd={() => (dragged.value = null)}
            >
              Step {index + 1}
            </span>
            <Select label="Worker" value={step.worker} options={props.workers.map((name) => [name, name] as const)} onChange={(worker) => change(index, { worker })} />
            <label class="wide">
              Task (leave empty to pass on your question)
              <input value={step.subtask} onInput={(event) => change(index, { subtask: event.currentTarget.value })} />
            </label>
            {index ? (
              <span role="group" aria-label={`Steps that step ${index + 1} reads`}>
                reads{" "}
                {steps.slice(0, index).map((_, read) => {
                  const on = step.access.includes(read);
                  const access = on ? step.access.filter((each) => each !== read) : [...step.access, read].sort((a, b) => a - b);
                  return (
                    <button type="button" key={read} aria-pressed={on} onClick={() => change(index, { access })}>
                      {read + 1}
                    </button>
                  );
                })}
              </span>
            ) : null}
            <button type="button" class="plain" disabled={steps.length === 1} onClick={() => drop(index)}>
              Remove step {index + 1}
            </button>
          </li>
        ))}
      </ol>
      <button
        type="button"
        onClick={() => (props.steps.value = [...steps, { worker: props.workers[0] ?? "", subtask: "", access: steps.length ? [steps.length - 1] : [] }])}
      >
        Add a step
      </button>
    </fieldset>
  );
}
