"use strict";

const get = (id) => document.getElementById(id);

async function call(method, path, value) {
  const response = await fetch(path, {
    method,
    headers: value ? { "Content-Type": "application/json" } : {},
    body: value && JSON.stringify(value),
  });
  const answer = response.status === 204 ? null : await response.json();
  get("error").textContent = response.ok ? "" : answer.error;
  return response.ok ? answer : undefined;
}

async function show() {
  const session = await call("GET", "/api/session");
  get("login").hidden = session.name !== null;
  get("paste").hidden = session.name === null;
  const pastes = await call("GET", "/api/pastes");
  get("pastes").replaceChildren(...pastes.map((paste) => {
    const link = document.createElement("a");
    link.href = "/raw/" + paste.id;
    link.textContent = `${paste.title} (${paste.author})`;
    const item = document.createElement("li");
    item.append(link);
    return item;
  }));
}

function onSubmit(id, path) {
  get(id).addEventListener("submit", async (event) => {
    event.preventDefault();
    const value = Object.fromEntries(new FormData(get(id)));
    if (await call("POST", path, value) !== undefined) {
      get(id).reset();
      await show();
    }
  });
}

onSubmit("login", "/api/session");
onSubmit("paste", "/api/pastes");
show();
