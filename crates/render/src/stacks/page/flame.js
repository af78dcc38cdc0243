// The flame graph of an observation.

// The scheme that the reader prefers, also when that changes.
const dark = matchMedia('(prefers-color-scheme: dark)');
const follow = () => { document.documentElement.dataset.scheme = dark.matches ? 'dark' : 'light'; };
dark.addEventListener('change', follow);
follow();

const objects = count => `${count.toLocaleString('en-US')} ${count === 1 ? 'object' : 'objects'}`;
const data = JSON.parse(document.getElementById('data').textContent);
const search = document.getElementById('search');
const tasks = document.getElementById('tasks');
document.getElementById('by').hidden = data.tasks.length === 0;
const graph = new FlameGraph(document.getElementById('graph'), document.getElementById('tip'),
  data.weight === 'kept_objects' ? objects : size);

/** Shows all stacks, those of each request or job by themselves if they are asked for. */
const showAll = () => {
  const stacks = data.stacks.map(([weight, frames, task]) => {
    const above = tasks.checked ? [data.tasks[task] ?? '(no request or job)'] : [];
    return [weight, [...above, ...frames.map(frame => data.names[frame])]];
  });
  if (data.unknown > 0) stacks.push([data.unknown, ['(unknown)']]);
  graph.show(data.weight === 'kept_objects' ? 'all that stays' : 'all growth', stacks);
};

tasks.addEventListener('change', showAll);
search.addEventListener('input', () => graph.mark(search.value));
showAll();
