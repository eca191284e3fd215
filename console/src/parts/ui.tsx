/** Elements that all pages share: messages, empty states, tables, dialogs, meters and choices. */
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { type Scope, type Window, whyNot } from "../data/access";
import { largest, sum } from "../data/format";
import { Icon, type IconName } from "./icons";

/** Head of a page: its title, a sentence about it, and its actions. */
export function PageHead(props: { title: ComponentChildren; lead?: ComponentChildren; children?: ComponentChildren }) {
  return (
    <header class="page-head">
      <div>
        <h1>{props.title}</h1>
        {props.lead ? <p class="lead">{props.lead}</p> : null}
      </div>
      {props.children ? <div class="page-actions">{props.children}</div> : null}
    </header>
  );
}

/** Error message. The element is always in the page, so that screen readers announce a new message. */
export function Alert(props: { text: string; children?: ComponentChildren }) {
  return (
    <p class={props.text ? "alert" : "alert none"} role="alert">
      {props.text} {props.text ? props.children : null}
    </p>
  );
}

/** Placeholder of a list without entries, or of a page that the key does not allow. */
export function Empty(props: { icon: IconName; title: string; children?: ComponentChildren; action?: ComponentChildren }) {
  return (
    <div class="empty">
      <span class="empty-icon">
        <Icon name={props.icon} />
      </span>
      <p class="empty-title">{props.title}</p>
      {props.children ? <div class="empty-text">{props.children}</div> : null}
      {props.action ? <p class="empty-action">{props.action}</p> : null}
    </div>
  );
}

/** Placeholder of a page that the key may not use. `cannot` says what the key cannot do without the scope. */
export function Locked(props: { title: string; scope: Scope; cannot: string; children?: ComponentChildren }) {
  return (
    <section>
      <PageHead title={props.title} />
      <Empty icon="lock" title={`This key cannot ${props.cannot}`}>
        {whyNot(props.scope)} {props.children}
      </Empty>
    </section>
  );
}

/** Form that calls `onSubmit`, and loads no page. */
export function Form(props: { class: string; onSubmit: () => void; children: ComponentChildren }) {
  return (
    <form
      class={props.class}
      onSubmit={(event) => {
        event.preventDefault();
        props.onSubmit();
      }}
    >
      {props.children}
    </form>
  );
}

/** Choice of one value from a list. The options are values with their texts. */
export function Select(props: { label: string; isLabelHidden?: boolean; value: string; options: readonly (readonly [string, string])[]; disabled?: boolean; onChange: (value: string) => void }) {
  return (
    <label>
      {props.isLabelHidden ? <span class="hidden">{props.label}</span> : props.label}
      <select value={props.value} disabled={props.disabled} onChange={(event) => props.onChange(event.currentTarget.value)}>
        {props.options.map(([value, text]) => (
          <option key={value} value={value}>
            {text}
          </option>
        ))}
      </select>
    </label>
  );
}

export interface Column<T> {
  name: string;
  /** Content of the cell. `most` is the largest amount of the column, if it has `usd`. */
  cell: (row: T, most: number) => ComponentChildren;
  /** Amount of money in the row. All amounts of a column have the unit of the largest. */
  usd?: (row: T) => number | null;
  /** Numbers are aligned to the right. */
  numeric?: boolean;
  /** On a phone, the main cell is the title of the row's card, and a column with `""` has no label. */
  main?: boolean;
}

/** Table. On a phone each row becomes a card. The roles are explicit, because the styles of a card would remove them. */
export function Table<T>(props: { label: string; columns: Column<T>[]; rows: readonly T[]; id: (row: T) => string; classOf?: (row: T) => string }) {
  const mosts = props.columns.map(({ usd }) => (usd ? largest(props.rows.map(usd)) : 0));
  return (
    <div class="scrolls" role="group" aria-label={props.label} tabIndex={0}>
      <table role="table">
        <thead role="rowgroup">
          <tr role="row">
            {props.columns.map((column) => (
              <th role="columnheader" scope="col" key={column.name} class={column.numeric ? "numeric" : undefined}>
                {column.name || <span class="hidden">Actions</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {props.rows.map((row) => (
            <tr role="row" key={props.id(row)} class={props.classOf?.(row)}>
              {props.columns.map((column, index) => (
                <td role="cell" key={column.name} data-label={column.name} class={[column.numeric ? "numeric" : "", column.main ? "main" : ""].join(" ")}>
                  {column.cell(row, mosts[index]!)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Dialog over the page. `children` get a function that closes it, which returns the focus to the element that had it before. */
export function Dialog(props: { title: string; onClose: () => void; wide?: boolean; children: (close: () => void) => ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const title = useId();
  useEffect(() => dialog.current?.showModal(), []);
  const close = () => dialog.current?.close();
  return (
    <dialog ref={dialog} class={props.wide ? "wide" : undefined} aria-labelledby={title} onClose={props.onClose} onMouseDown={(event) => event.target === dialog.current && close()}>
      <div class="dialog-body">
        <div class="dialog-head">
          <h2 id={title}>{props.title}</h2>
          <button type="button" class="plain icon-button" aria-label="Close" onClick={close}>
            <Icon name="close" />
          </button>
        </div>
        {props.children(close)}
      </div>
    </dialog>
  );
}

/** Choice of one of a few values. */
export function Segments<T extends string>(props: { label: string; options: readonly (readonly [T, string])[]; value: T; onChange: (value: T) => void }) {
  return (
    <div class="segments" role="group" aria-label={props.label}>
      {props.options.map(([value, text]) => (
        <button type="button" key={value} aria-pressed={props.value === value} onClick={() => props.onChange(value)}>
          {text}
        </button>
      ))}
    </div>
  );
}

/** Bar that shows how much of a limit is used. Without a limit there is only the amount.
 *
 * @param most largest of the amounts in the same list.
 */
export function Meter(props: { label: string; used: number; held?: number; limit: number | null; most?: number }) {
  const held = props.held ?? 0;
  const most = largest([props.most ?? 0, props.used, held, props.limit]);
  const share = props.limit ? Math.min(1, (props.used + held) / props.limit) : props.limit === 0 ? 1 : 0;
  const level = share >= 1 ? "full" : share >= 0.8 ? "high" : "";
  return (
    <div class="meter-box">
      <span>
        {sum(props.used, most)}
        {props.limit === null ? null : <span class="soft"> of {sum(props.limit, most)}</span>}
        {held ? <span class="soft">, {sum(held, most)} reserved</span> : null}
      </span>
      {props.limit === null ? null : (
        <span class={`meter ${level}`} role="meter" aria-label={props.label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(100 * share)}>
          <span style={{ width: `${100 * share}%` }} />
        </span>
      )}
    </div>
  );
}

/** Spending in a day or month, and its limit. */
export function Spending(props: { label: string; window: Window | undefined; most?: number }) {
  const { window } = props;
  if (!window) return null;
  return <Meter label={props.label} most={props.most} used={Number(window.spent_usd)} held={Number(window.held_usd)} limit={window.limit_usd === null ? null : Number(window.limit_usd)} />;
}

/** Button that copies a text, and says that it did. Browsers offer no clipboard to pages without TLS of other machines. */
export function Copy(props: { text: string; name?: string }) {
  const done = useSignal(false);
  if (!isSecureContext) return null;
  const copy = async () => {
    await navigator.clipboard.writeText(props.text);
    done.value = true;
    setTimeout(() => (done.value = false), 1500);
  };
  return (
    <button type="button" class="small-button" onClick={() => void copy().catch(() => undefined)}>
      <Icon name="copy" /> {done.value ? "Copied" : "Copy"}
      {props.name ? <span class="hidden"> {props.name}</span> : null}
    </button>
  );
}

/** Button that asks for confirmation. */
export function Confirmed(props: { name: string; question: string; disabled?: boolean; onConfirm: () => void; children?: ComponentChildren }) {
  const asks = useSignal(false);
  if (!asks.value)
    return (
      <button type="button" disabled={props.disabled} onClick={() => (asks.value = true)}>
        {props.name}
      </button>
    );
  return (
    <div class="confirm" role="group" aria-label={props.name}>
      <p>{props.question}</p>
      {props.children}
      <p class="buttons">
        <button
          type="button"
          class="danger"
          onClick={() => {
            asks.value = false;
            props.onConfirm();
          }}
        >
          Yes, {props.name.charAt(0).toLowerCase() + props.name.slice(1)}
        </button>
        <button type="button" class="plain" onClick={() => (asks.value = false)}>
          Keep it as it is
        </button>
      </p>
    </div>
  );
}

/** Width of an element in pixels, for drawings that fit it. The element may appear later than its component. */
export function useWidth(first: number) {
  const width = useSignal(first);
  const watch = useRef<ResizeObserver | null>(null);
  const ref = useRef((element: HTMLDivElement | null) => {
    watch.current?.disconnect();
    if (!element) return;
    watch.current = new ResizeObserver(() => {
      if (element.clientWidth) width.value = element.clientWidth;
    });
    watch.current.observe(element);
  });
  return { ref: ref.current, width: width.value };
}

/** Call `work` every few seconds while the page is visible. A call begins only after the one before has ended. */
export function useEvery(every_ms: number, isActive: boolean, work: () => Promise<unknown>): void {
  const newest = useRef(work);
  newest.current = work;
  useEffect(() => {
    if (!isActive) return undefined;
    let timer = 0;
    let isOver = false;
    const wait = () => {
      if (!isOver) timer = window.setTimeout(() => void tick(), every_ms);
    };
    const tick = async () => {
      if (!document.hidden) await newest.current();
      wait();
    };
    wait();
    return () => {
      isOver = true;
      window.clearTimeout(timer);
    };
  }, [isActive, every_ms]);
}
