/** The head of a table. The column without a name holds what may be done with a row. */
export function Columns({ names }: { names: string[] }) {
  return (
    <thead>
      <tr>
        {names.map((name) => (
          <th scope="col" key={name}>
            {name || <span class="hidden">What may be done</span>}
          </th>
        ))}
      </tr>
    </thead>
  );
}
