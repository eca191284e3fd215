/** Head of a table. The column without a name has the actions on a row. */
export function Columns({ names }: { names: string[] }) {
  return (
    <thead>
      <tr>
        {names.map((name) => (
          <th scope="col" key={name}>
            {name || <span class="hidden">Actions</span>}
          </th>
        ))}
      </tr>
    </thead>
  );
}
