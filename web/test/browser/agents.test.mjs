// Real agents, without a network: programs of others that `cargo xtask interop` installs, with a fake for each one's model.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Host, assertComplete, begin, closeBrowser, openPage, said, say, shot, turns } from './harness.mjs';

const peers = fileURLToPath(new URL('../../../interop/node/', import.meta.url));
const platform = `${process.platform}-${process.arch}`;

after(closeBrowser);

/** What a fake model does is what the prompt says: `say`, `run`, `tick`, `recall`. */
const AGENTS = [
  {
    name: 'claude',
    kind: 'claude',
    command: [join(peers, `node_modules/@anthropic-ai/claude-code-${platform}/claude`)],
    model: 'messages_api.mjs',
    env: (url) => ({ ANTHROPIC_BASE_URL: url, ANTHROPIC_API_KEY: 'sk-ant-a-fake-key', CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1', DISABLE_AUTOUPDATER: '1' }),
  },
  {
    name: 'opencode',
    kind: 'acp',
    command: [join(peers, `node_modules/opencode-${platform}/bin/opencode`), 'acp'],
    model: 'models.mjs',
    env: (url) => {
      const provider = { npm: '@ai-sdk/openai-compatible', name: 'Mock', models: { small: { name: 'Small' } }, options: { baseURL: `${url}/v1`, apiKey: 'a-fake-key' } };
      const permission = { bash: 'ask', edit: 'ask' };
      const config = { provider: { mock: provider }, model: 'mock/small', small_model: 'mock/small', permission, share: 'disabled', autoupdate: false, snapshot: false };
      return { OPENCODE_CONFIG_CONTENT: JSON.stringify(config), OPENCODE_DISABLE_AUTOUPDATE: '1', OPENCODE_DISABLE_MODELS_FETCH: '1', OPENCODE_DISABLE_LSP_DOWNLOAD: '1' };
    },
  },
];

for (const { name, kind, command, model, env } of AGENTS) {
  const skip = existsSync(command[0]) ? false : 'it is not installed: run `cargo xtask interop`';
  test(`${name} is driven from the page`, { skip, timeout: 180_000 }, async () => {
    const dir = mkdtempSync(join(tmpdir(), 'breakbulk-agent-'));
    const server = spawn(process.execPath, [join(peers, model)], { stdio: ['pipe', 'pipe', 'inherit'] });
    let host;
    try {
      const url = await new Promise((resolve) => createInterface({ input: server.stdout }).once('line', resolve));
      // A home of its own, so that the agent sees no settings of whoever runs the test.
      mkdirSync(join(dir, 'home'));
      const variables = { ...env(url), HOME: join(dir, 'home') };
      const table = Object.entries(variables).map(([key, value]) => `${key} = ${JSON.stringify(value)}`).join(', ');
      writeFileSync(join(dir, 'agents.toml'), `[[agent]]\nname = "${name}"\nkind = "${kind}"\ncommand = ${JSON.stringify(command)}\nenv = { ${table} }\n`);
      host = await Host.start(['--config', join(dir, 'agents.toml')]);
      await drive(host, name);
    } finally {
      await host?.stop();
      server.stdin.end();
      rmSync(dir, { recursive: true, force: true, maxRetries: 5 });
    }
  });
}

/** @param {Host} host @param {string} name */
async function drive(host, name) {
  const page = await openPage(host.ready.page);
  page.setDefaultTimeout(60_000);
  await begin(page);
  await say(page, 'say Good morning from the other side');
  await turns(page, 1);
  assert.match((await said(page)).join(), /Good morning from the other side/);

  await say(page, 'run echo allowed > made.txt; cat made.txt');
  await page.locator('.approval').waitFor();
  await shot(page, `agent-${name}-approval`);
  await page.locator('.approval').getByRole('button', { name: /^(Allow|Yes)/ }).first().click();
  await turns(page, 2);
  assert.match((await said(page)).join(), /The call gave: .*allowed/s);

  await say(page, 'run echo denied > denied.txt');
  await page.locator('.approval').waitFor();
  await page.keyboard.press('Alt+d');
  await turns(page, 3);
  assert.equal(await page.locator('.tool[data-state="failed"]').count(), 1);

  // The connection is dropped while words come.
  await page.getByRole('button', { name: 'Wire' }).first().click();
  await say(page, 'tick');
  await page.locator('.message.agent').last().getByText(/tick tick/).waitFor();
  await page.getByRole('button', { name: 'Drop this connection' }).click();
  await page.locator('.banner').waitFor();
  await page.locator('.banner').waitFor({ state: 'hidden' });
  await page.waitForTimeout(300);
  await page.getByRole('button', { name: 'Stop the agent' }).click();
  await page.locator('.turn-end').getByText('Stopped').waitFor();
  await assertComplete(host, page);

  await page.getByRole('button', { name: 'Close the panel' }).click();
  await page.getByRole('button', { name: 'More' }).click();
  await page.getByRole('button', { name: 'End the agent' }).click();
  await page.getByText('The agent’s program was ended.').waitFor();
  await say(page, 'recall');
  await turns(page, 5);
  assert.match((await said(page)).at(-1), /Good morning from the other side/);
  await shot(page, `agent-${name}`);
  assert.deepEqual(page.complaints, []);
}
