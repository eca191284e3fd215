/** Details of one step: its facts, prompt, output and attempts. */
import { useEffect, useRef } from "preact/hooks";
import { cacheWords, count, dollars, seconds } from "../data/format";
import type { ApiFault, ApiRun, Attempt, ToolCall, Turn } from "../data/record";
import type { Step } from "../data/run";
import { statusWord } from "../data/status";

export function Details(props: { step: Step; trace: string | null; onClose: () => void }) {
  const { step } = props;
  const usage = step.usage;
  const panel = useRef<HTMLElement>(null);
  useEffect(() => {
    // it may be below the plan, and out of sight
    if (panel.current && panel.current.getBoundingClientRect().top > innerHeight - 200) panel.current.scrollIntoView({ block: "nearest" });
  }, []);
  return (
    <aside ref={panel} class="details" aria-label={`Step ${step.step + 1}`}>
      <header>
        <h2>
          Step {step.step + 1}: {step.worker}
        </h2>
        <button type="button" class="plain" onClick={props.onClose}>
          Close
        </button>
      </header>
      <dl>
        <Fact name="Status" value={statusWord(step.status, step.finish_reason)} />
        <Fact name="Task" value={step.subtask || "Answer the question"} />
        <Fact name="Needs" value={step.needs ?? ""} />
        <Fact name="Reads" value={step.access.map((read) => `step ${read + 1}`).join(", ")} />
        <Fact name="Model" value={step.model ?? ""} />
        <Fact name="Tokens" value={usage ? `${count(usage.input_tokens)} in, ${count(usage.output_tokens)} out` : ""} />
        <Fact name="Cache" value={cacheWords(step)} />
        <Fact name="Cost" value={step.ended_s === null || step.status === "waiting" ? "" : dollars(step.cost_usd)} />
        <Fact name="Time to first token" value={step.first_token_s !== null && step.started_s !== null ? seconds(step.first_token_s - step.started_s) : ""} />
        <Fact name="Trace" value={props.trace ?? ""} />
        <Fact name="Span" value={step.span_id ?? ""} />
      </dl>
      {step.attempts.length ? <Attempts attempts={step.attempts} /> : null}
      <Fault fault={step.error} isFirst={step.attempts.length > 0} />
      {step.turns.length ? <Turns turns={step.turns} /> : null}
      {step.inner ? <Inner run={step.inner} /> : null}
      <h3>Output</h3>
      <Said step={step} />
      {step.reasoning ? (
        <details>
          <summary>Reasoning</summary>
          <pre>{step.reasoning}</pre>
        </details>
      ) : null}
      <details>
        <summary>Prompt</summary>
        {step.prompt.map((message, index) => (
          <section key={index}>
            <h4>{message.role}</h4>
            <pre>{message.content}</pre>
          </section>
        ))}
        {step.prompt.length ? null : <p>The prompt appears here after the run has ended, if the team's policy stores texts.</p>}
      </details>
      {step.notes.length ? (
        <ul>
          {step.notes.map((note) => (
            <li key={note}>{note}</li>
          ))}
        </ul>
      ) : null}
    </aside>
  );
}

/** Nested run that a model of the team made for the step, with its steps and their nested runs. */
function Inner(props: { run: ApiRun }) {
  const { run } = props;
  return (
    <>
      <h3>Nested run</h3>
      <p class="small">
        {run.model}, {statusWord(run.status, run.finish_reason)}: {seconds(run.wall_s)}, {dollars(run.cost_usd)}. <code>{run.id}</code>
      </p>
      <ol class="inner">
        {run.steps.map((step) => (
          <li key={`${step.plan}.${step.step}`}>
            <strong>{step.worker}</strong> <span class="chip">{statusWord(step.status, step.finish_reason)}</span> {step.subtask || "Answer the question"}
            {step.ended_s !== null && step.started_s !== null ? ` (${seconds(step.ended_s - step.started_s)}, ${dollars(step.cost_usd)})` : ""}
            {step.output ? <pre>{step.output}</pre> : null}
            {step.inner ? <Inner run={step.inner} /> : null}
          </li>
        ))}
      </ol>
    </>
  );
}

/** Calls of the client's tools and their results. All of these texts are untrusted. */
function Turns(props: { turns: Turn[] }) {
  return (
    <>
      <h3>Tool calls</h3>
      <ol class="turns">
        {props.turns.map((turn, index) => (
          <li key={index}>
            {turn.output ? <pre>{turn.output}</pre> : null}
            {turn.tool_calls.map((call) => (
              <div key={call.number} class="tool-call">
                <p>
                  <code>{call.name}</code> <span class="chip">{resultWord(call)}</span>
                </p>
                <pre class="tool-text">{call.arguments}</pre>
                {typeof call.result === "string" ? <pre class="tool-text tool-result">{call.result}</pre> : null}
              </div>
            ))}
          </li>
        ))}
      </ol>
    </>
  );
}

function resultWord(call: ToolCall): string {
  if (call.result === null || call.result === undefined) return "no result yet";
  return call.is_error ? "returned an error" : "returned a result";
}

function Said(props: { step: Step }) {
  return <pre class="said">{props.step.words.value || (props.step.ended_s === null ? "No output yet." : "No output.")}</pre>;
}

function Fact(props: { name: string; value: string }) {
  return props.value ? (
    <div>
      <dt>{props.name}</dt>
      <dd>{props.value}</dd>
    </div>
  ) : null;
}

/** Error with its first cause first. Operators also see the details. */
export function Fault(props: { fault: ApiFault | null; isFirst?: boolean }) {
  const { fault } = props;
  if (!fault) return null;
  const earlier = props.isFirst ? [] : (fault.podium?.attempts ?? []).filter((each) => each.outcome !== "lost_race");
  return (
    <div class="fault">
      {[...earlier, fault].map((each, index) => (
        <p key={index}>
          {index ? "Then: " : ""}
          {each.message}
          {each.detail ? <small> {each.detail}</small> : null}
        </p>
      ))}
    </div>
  );
}

function Attempts(props: { attempts: Attempt[] }) {
  return (
    <>
      <h3>Earlier attempts</h3>
      <ol>
        {props.attempts.map((attempt, index) => (
          <li key={index}>
            {attempt.worker}
            {attempt.hedge ? " (hedge of a slow call)" : ""}: {attempt.message} {attempt.detail ? <small>{attempt.detail} </small> : null}
            {attempt.waited_s ? `Waited ${seconds(attempt.waited_s)} before the next attempt.` : ""}
          </li>
        ))}
      </ol>
    </>
  );
}
