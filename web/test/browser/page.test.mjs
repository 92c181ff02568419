// The page in a real browser, with a host of the built program and its demo agent.

import assert from 'node:assert/strict';
import { rmSync, writeFileSync } from 'node:fs';
import { request } from 'node:http';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { Host, TOKEN, assertAccessible, assertComplete, begin, chatShown, closeBrowser, message, openPage, said, say, scrollToEnd, shot, turns, written } from './harness.mjs';

/** A host that hurries. @type {Host} */
let host;
before(async () => {
  host = await Host.start(['--demo-pace', '2ms', '--demo-slow-pace', '25ms']);
});
after(async () => {
  await closeBrowser();
  await host?.stop();
});

/** Records tasks of the page that take 50 ms or longer; returns the longest, for people. */
async function watchTasks(page) {
  await page.evaluate(() => {
    window.longest = 0;
    new PerformanceObserver((list) => {
      for (const { duration } of list.getEntries()) window.longest = Math.max(window.longest, duration);
    }).observe({ type: 'longtask' });
  });
  return async () => {
    const longest = await page.evaluate(() => Math.round(window.longest));
    return longest === 0 ? 'under 50 ms' : `${longest} ms`;
  };
}

test('a session begins, and the answer streams', async () => {
  const page = await openPage(host.ready.page);
  assert.ok(!page.url().includes('token'), 'the token is not in the address bar');
  await begin(page);
  await assertAccessible(page);
  await say(page, 'Hello, is anybody there?');
  await turns(page, 1);
  assert.match((await said(page)).join(), /I am the demo agent/);
  assert.equal(await page.locator('.message.user .said').innerText(), 'Hello, is anybody there?');
  await shot(page, 'answer');
  await assertAccessible(page);
  await page.reload();
  await turns(page, 1);
  await assertComplete(host, page);
  assert.deepEqual(page.complaints, []);
});

test('calls are allowed and denied', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  await say(page, '/run echo allowed');
  await page.locator('.approval').waitFor();
  await shot(page, 'approval');
  await assertAccessible(page);
  await page.locator('.approval').getByRole('button', { name: 'Allow' }).click();
  await turns(page, 1);
  await page.locator('.tool summary').click();
  await page.waitForFunction(() => /allowed/.test(document.querySelector('.tool-body')?.textContent ?? ''));
  await say(page, '/run echo denied');
  await page.locator('.approval').waitFor();
  await page.locator('.approval').getByRole('button', { name: 'Deny' }).click();
  await turns(page, 2);
  assert.equal(await page.locator('.tool[data-state="failed"]').count(), 1);
  assert.deepEqual(page.complaints, []);
});

test('a connection that is dropped in the middle of an answer loses and repeats nothing', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  await page.getByRole('button', { name: 'Wire' }).first().click();
  await say(page, `/slow ${'One cargo, many pieces. '.repeat(12)}`);
  await page.evaluate(() => {
    window.losses = 0;
    let wasHidden = true;
    const banner = document.querySelector('.banner');
    new MutationObserver(() => {
      if (wasHidden && !banner.hidden) window.losses += 1;
      wasHidden = banner.hidden;
    }).observe(banner, { attributes: true });
  });
  for (let cut = 1; cut <= 3; cut += 1) {
    await page.waitForTimeout(300);
    await page.getByRole('button', { name: 'Drop this connection' }).click();
    await page.waitForFunction((losses) => window.losses >= losses, cut);
    if (cut === 1) await shot(page, 'offline');
    await page.locator('.banner').waitFor({ state: 'hidden' });
  }
  await turns(page, 1);
  await page.getByRole('region', { name: 'Last reconnect' }).getByText('/v2').waitFor();
  await shot(page, 'wire');
  await assertAccessible(page);
  await assertComplete(host, page);
  assert.deepEqual(page.complaints, []);
});

test('a host that is killed and started again has everything that was seen', async () => {
  const own = await Host.start(['--demo-pace', '2ms', '--demo-slow-pace', '25ms']);
  try {
    const page = await openPage(own.ready.page);
    await begin(page);
    await say(page, 'Before the crash');
    await turns(page, 1);
    await say(page, `/slow ${'Half of this is lost at sea. '.repeat(20)}`);
    const texts = () => page.locator('.message.agent .markdown').allInnerTexts();
    await page.locator('.message.agent').nth(1).getByText('lost at sea').waitFor();
    const seen = await texts();
    await own.kill();
    await page.locator('.banner').waitFor();
    await own.run();
    await page.locator('.banner').waitFor({ state: 'hidden' });
    await turns(page, 2);
    const now = await texts();
    assert.equal(now[0], seen[0]);
    assert.ok(seen[1].length > 10 && now[1].startsWith(seen[1]), `${seen[1]} / ${now[1]}`);
    await say(page, 'After the crash');
    await turns(page, 3);
    await page.context().close();
  } finally {
    await own.stop();
  }
});

test('a result of 5 MB is shown to its last line, with few elements', async (t) => {
  const page = await openPage(host.ready.page);
  await begin(page);
  const longest = await watchTasks(page);
  await say(page, '/big 5MB');
  await turns(page, 1);
  await page.locator('.tool summary').click();
  await page.getByRole('button', { name: /Show all/ }).click();
  await page.locator('.panel[data-state="done"]').waitFor();
  await page.locator('.viewer').evaluate((viewer) => viewer.scrollTo(0, viewer.scrollHeight / 2));
  const asked = await page.waitForFunction(() => performance.getEntriesByType('resource').findLast(({ name }) => name.includes('/content/result/'))?.name.split('/').slice(-3));
  const [chat, turn, call] = await asked.jsonValue();
  const whole = await (await fetch(new URL(`/content/result/${chat}/${turn}/${call}`, host.ready.page), { headers: { authorization: `Bearer ${TOKEN}` } })).text();
  assert.equal(Buffer.byteLength(whole), 5_000_000);
  const last = whole.trimEnd().split('\n').at(-1);
  await scrollToEnd(page, last.slice(-30));
  assert.ok((await page.locator('*').count()) < 600);
  await shot(page, 'result');
  t.diagnostic(`longest task with a result of 5 MB: ${await longest()}`);
  assert.deepEqual(page.complaints, []);
});

test('a stream of hundreds of events a second is drawn once a frame', async (t) => {
  const page = await openPage(host.ready.page);
  await begin(page);
  const longest = await watchTasks(page);
  await say(page, '/big 10'); // Warms up.
  await turns(page, 1);
  await page.evaluate(() => {
    window.draws = 0;
    window.shifts = 0;
    new MutationObserver(() => (window.draws += 1)).observe(document.querySelector('.messages'), { subtree: true, childList: true, characterData: true });
    new PerformanceObserver((list) => list.getEntries().forEach(({ value, hadRecentInput }) => (window.shifts += hadRecentInput ? 0 : value))).observe({ type: 'layout-shift' });
    window.begun = performance.now();
  });
  let events = 0;
  const session = await page.context().newCDPSession(page);
  await session.send('Network.enable');
  session.on('Network.webSocketFrameReceived', () => (events += 1));
  await say(page, `${'Many words arrive, each in an event of its own. '.repeat(60)}`);
  await turns(page, 2);
  const { draws, shifts, seconds } = await page.evaluate(() => ({ draws: window.draws, shifts: window.shifts, seconds: (performance.now() - window.begun) / 1000 }));
  t.diagnostic(`${events} events, ${Math.round(events / seconds)} a second, drawn ${draws} times; longest task: ${await longest()}; layout shift ${shifts.toFixed(3)}`);
  assert.ok(draws > 0 && draws < events, `${draws} draws of ${events} events`);
  // Content that grows at its end moves nothing else.
  assert.ok(shifts < 0.1, `layout shift ${shifts}`);
  await assertComplete(host, page);
});

test('the first line of an answer stays where it is while the rest comes', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  await page.evaluate(() => {
    window.places = new Set();
    const look = () => {
      const line = document.querySelector('.message.agent .markdown p');
      if (line) window.places.add(Math.round(line.getBoundingClientRect().top));
      requestAnimationFrame(look);
    };
    look();
  });
  await say(page, '/slow Hello');
  await turns(page, 1);
  assert.equal(await page.evaluate(() => window.places.size), 1);
});

test('at more than 200 events a second the page is never busy for long', async (t) => {
  const page = await openPage('');
  const events = 2_000;
  // Stands in for the host: what it sends is what a fast one would, at a pace that no load of this machine changes much.
  await page.routeWebSocket(/\/v2/, (socket) => {
    let seq = 1;
    const send = (event) => socket.send(JSON.stringify(event));
    const tell = (type, more) => send({ v: 2, type, ts: Date.now(), seq: (seq += 1), sessionId: 'ahp-session:/fast', ...more });
    socket.onMessage((text) => {
      const { type } = JSON.parse(text);
      if (type === 'hello') send({ type: 'client_id', clientId: 'c', maxCommandBytes: 1e6 });
      if (type === 'list') send({ type: 'sessions', sessions: [{ sessionId: 'ahp-session:/fast', title: 'Fast', agent: 'demo', cwd: '/', state: 'running', modifiedAt: new Date().toISOString() }] });
      if (type !== 'watch') return;
      send({ type: 'reattached', clientId: 'c', sessionId: 'ahp-session:/fast', running: true, state: 'running', snapshot: 'fresh' });
      tell('session_start', { agent: 'demo', branch: null, cwd: '/', worktree: false, snapshot: true });
      tell('user_message', { turnId: 't1', text: 'Go' });
      tell('message_start', { messageId: 'm1' });
      tell('block_start', { messageId: 'm1', blockId: 'b0', blockType: 'text' });
      let sent = 0;
      const timer = setInterval(() => {
        for (let at = 0; at < 5 && sent < events; at += 1, sent += 1) {
          const delta = sent % 40 === 39 ? `word${sent}.\n\n` : sent % 200 === 10 ? '`code` and **more** ' : `word${sent} `;
          tell('block_delta', { messageId: 'm1', blockId: 'b0', blockType: 'text', delta });
        }
        if (sent < events) return;
        clearInterval(timer);
        tell('block_end', { messageId: 'm1', blockId: 'b0', blockType: 'text' });
        tell('message_end', { messageId: 'm1' });
        tell('turn_end', { turnId: 't1', outcome: 'complete' });
      }, 10);
    });
  });
  await page.goto(host.ready.page);
  const longest = await watchTasks(page);
  await page.getByRole('button', { name: 'Fast' }).click();
  await page.locator('.message.agent').getByText('word100 ').waitFor();
  const begun = performance.now();
  await page.locator('.message.agent').getByText(`word${events - 1}.`).waitFor();
  await turns(page, 1);
  const rate = Math.round(((events - 100) / (performance.now() - begun)) * 1000);
  t.diagnostic(`${rate} events a second; longest task: ${await longest()}`);
  const text = await page.locator('.message.agent').innerText();
  for (let word = 0; word < events; word += 1) if (word % 200 !== 10) assert.ok(text.includes(`word${word}`), `word${word} is missing`);
  assert.deepEqual(page.complaints, []);
});

test('a peer that breaks a rule is named in the wire panel, and the page lives', async () => {
  const page = await openPage('');
  let isHostile = true;
  await page.routeWebSocket(/\/ahp/, (socket) => {
    const server = socket.connectToServer();
    server.onMessage((text) => {
      socket.send(text);
      if (!isHostile || !String(text).includes('"agents"')) return;
      isHostile = false;
      socket.send('{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{"groupId":"g","index":3,"total":9,"data":"e30="}}');
    });
  });
  await page.goto(host.ready.page);
  await begin(page);
  await page.getByRole('button', { name: 'Wire' }).first().click();
  const broken = page.getByRole('region', { name: 'Broken rules' });
  await broken.getByRole('row', { name: 'group-unknown 1' }).waitFor();
  await page.getByRole('region', { name: 'Carried' }).getByRole('row', { name: /^\/ahp open/ }).waitFor();
  await shot(page, 'wire-violation');
  await say(page, 'Is anybody there?');
  await turns(page, 1);
  await page.getByRole('tab', { name: 'Files' }).click();
  await page.getByRole('button', { name: 'README.md' }).waitFor();
  // Something is drawn in both plots.
  await page.getByRole('tab', { name: 'Wire' }).click();
  await page.getByText(/now \d+ ms/).waitFor();
  await page.waitForFunction(() =>
    [...document.querySelectorAll('.plot')].every((canvas) => {
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      // More than the ground and the grid.
      return new Set(new Uint32Array(data.buffer)).size > 3;
    }),
  );
  assert.deepEqual(page.complaints, []);
});

test('a wrong token is told, and the right one can be pasted', async () => {
  const page = await openPage(host.ready.page.replace(TOKEN, 'not-the-token-of-this-host'));
  await page.getByText('This host needs a token').waitFor();
  await shot(page, 'token');
  await assertAccessible(page);
  await page.getByLabel('Address or token').fill(host.ready.page);
  await page.getByRole('button', { name: 'Connect' }).click();
  await page.getByText('What shall be done?').waitFor();
});

test('a changed file is shown as a difference, and changes again', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  await page.getByRole('button', { name: 'Changes' }).click();
  writeFileSync(join(host.workspace, 'src/main.rs'), 'fn main() {\n    println!("two");\n}\n');
  await page.locator('.diff-line.add').waitFor();
  assert.match(await page.locator('.diff-line.remove').innerText(), /println!\("one"\)/);
  assert.match(await page.locator('.diff-line.add').innerText(), /println!\("two"\)/);
  await shot(page, 'changes');
  await assertAccessible(page);
  await page.getByRole('tab', { name: 'Files' }).click();
  await page.getByRole('button', { name: 'README.md' }).click();
  await page.locator('.viewer-lines').getByText('Its first line.').waitFor();
  await shot(page, 'files');
  assert.deepEqual(page.complaints, []);
});

test('a large file comes in segments', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  const lines = Array.from({ length: 20_000 }, (_, at) => `This is line ${at} of a file of more than a megabyte, so that it needs segments.`);
  writeFileSync(join(host.workspace, 'large.txt'), `${lines.join('\n')}\n`);
  await page.getByRole('button', { name: 'Files' }).click();
  await page.getByRole('button', { name: 'large.txt' }).click();
  await page.locator('.viewer-lines').getByText('This is line 0 of').waitFor();
  await scrollToEnd(page, lines.at(-1));
  await page.getByRole('tab', { name: 'Wire' }).click();
  const transfer = page.locator('.transfer', { hasText: 'Received' }).last();
  await transfer.getByText(/^1\.\d MB of 1\.\d MB · \d+ segments · .*\/s · \d+\.\d s$/).waitFor();
  const segments = Number(/(\d+) segments/.exec(await transfer.innerText())[1]);
  assert.ok(segments >= 6, `${segments} segments for 1.5 MB in frames of 256 KiB`);
  assert.equal(await transfer.locator('progress').evaluate(({ value, max }) => value / max), 1);
  await shot(page, 'wire-transfer');
  rmSync(join(host.workspace, 'large.txt'));
  assert.deepEqual(page.complaints, []);
});

test('a fork and a side chat are chats of their own', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  await say(page, 'The first thing');
  await turns(page, 1);
  await page.getByRole('button', { name: 'Fork' }).click();
  await chatShown(page, 1);
  await turns(page, 1);
  await say(page, 'Said in the fork');
  await turns(page, 2);
  await page.getByRole('button', { name: 'Main' }).click();
  await chatShown(page, 0);
  await turns(page, 1);
  assert.equal(await page.locator('.turn-end').count(), 1);
  await page.getByRole('button', { name: 'Side chat' }).click();
  await chatShown(page, 2);
  await say(page, '/recall');
  await turns(page, 1);
  assert.match((await said(page)).join(), /The first thing/);
  await shot(page, 'side-chat');
  await page.reload();
  await turns(page, 1);
  assert.match((await said(page)).join(), /The first thing/);
  assert.deepEqual(page.complaints, []);
});

test('a terminal runs a command, and is there again when its panel is, and when the page is', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  await page.getByRole('button', { name: 'Terminal' }).click();
  await page.locator('.xterm-screen').waitFor();
  await page.locator('.xterm-rows').getByText(/[$#]/).first().waitFor();
  await page.keyboard.type('printf "six times seven is %d\\n" $((6*7))\n');
  await page.locator('.xterm-rows').getByText('six times seven is 42').waitFor();
  await shot(page, 'terminal');
  await page.getByRole('button', { name: 'Close the panel' }).click();
  await page.getByRole('button', { name: 'Terminal' }).click();
  await page.locator('.xterm-rows').getByText('six times seven is 42').waitFor();
  await page.reload();
  await page.getByRole('button', { name: 'Terminal' }).click();
  await page.locator('.xterm-rows').getByText('six times seven is 42').waitFor();
  await page.getByRole('button', { name: 'New terminal' }).click();
  await page.getByRole('button', { name: 'Terminal 2', pressed: true }).waitFor();
  // The first one's text stays until the second one's has come.
  await page.locator('.xterm-rows').getByText('six times seven is 42').waitFor({ state: 'hidden' });
  await page.locator('.xterm-rows').getByText(/[$#]/).first().waitFor();
  await page.keyboard.type('echo $((6*8))\n');
  await page.locator('.xterm-rows').getByText('48', { exact: true }).waitFor();
  await page.getByRole('button', { name: 'End', exact: true }).click();
  await page.getByRole('button', { name: 'Terminal 2' }).waitFor({ state: 'detached' });
  // The former page is gone, so the terminal is free for this one.
  await page.locator('.xterm-rows').getByText('six times seven is 42').waitFor();
  await page.locator('.panel-head [role=status]').filter({ hasText: 'Another page' }).waitFor({ state: 'detached' });
  await page.locator('.xterm-screen').click();
  await page.keyboard.type('echo $((7*8))\n');
  await page.locator('.xterm-rows').getByText('56', { exact: true }).waitFor();
  assert.deepEqual(page.complaints, []);
});

test('the keyboard is enough', async () => {
  const page = await openPage(host.ready.page);
  await page.getByRole('button', { name: 'New session' }).first().waitFor();
  const reach = async (name) => {
    for (let step = 0; step < 40; step += 1) {
      await page.keyboard.press('Tab');
      const label = await page.evaluate(() => document.activeElement?.matches(':not(body, dialog)') && (document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent)) || '';
      if (label.includes(name)) return;
    }
    assert.fail(`${name} cannot be reached with the keyboard`);
  };
  await reach('New session');
  await page.keyboard.press('Enter');
  await page.getByLabel('Directory').waitFor();
  await page.waitForFunction(() => !document.querySelector('dialog button[type=submit]').disabled);
  await reach('Begin');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.activeElement?.matches('textarea'));
  await page.keyboard.type('/run echo keys');
  await page.keyboard.press('Enter');
  await page.locator('.approval').waitFor();
  await page.keyboard.press('Alt+a');
  await turns(page, 1);
  // From the message field on, in the order of the page: around it and to the turn, its call and its fork.
  await reach('demo_run');
  await page.keyboard.press('Enter');
  await page.locator('.tool[open]').waitFor();
  await reach('Fork');
  await page.keyboard.press('Enter');
  await chatShown(page, 1);
  await turns(page, 1);
  await page.waitForFunction(() => document.activeElement?.matches('textarea'));
  await page.keyboard.insertText(`/slow ${'Something that takes a while. '.repeat(100)}`);
  await page.keyboard.press('Enter');
  await page.getByRole('button', { name: 'Stop the agent' }).waitFor();
  await page.keyboard.press('Escape');
  await page.locator('.turn-end').getByText('Stopped').waitFor();
  await reach('Changes');
  await page.keyboard.press('Enter');
  await page.getByRole('tab', { name: 'Changes', selected: true }).waitFor();
  await reach('Changes');
  for (const name of ['Files', 'Terminal', 'Wire']) {
    await page.keyboard.press('ArrowRight');
    await page.getByRole('tab', { name, selected: true }).waitFor();
  }
  await page.getByRole('tab', { name: 'Wire' }).focus();
  await reach('Drop this connection');
  await page.keyboard.press('Escape');
  await page.locator('.drawer').waitFor({ state: 'hidden' });
  assert.ok(await page.evaluate(() => document.activeElement?.textContent === 'Changes'), 'the focus is where it was');
  assert.deepEqual(page.complaints, []);
});

test('Markdown runs nothing and fetches nothing', async () => {
  const page = await openPage(host.ready.page);
  const asked = [];
  page.on('request', (request) => asked.push(request.url()));
  await begin(page);
  const hostile = [
    '<script>window.ran = 1</script>',
    '<img src="http://127.0.0.1:9/x.png" onerror="window.ran = 2">',
    '[a link](javascript:window.ran=3)',
    '![a picture](http://127.0.0.1:9/y.png)',
    '<a href="data:text/html,x">data</a>',
    '<iframe srcdoc="<script>parent.ran=4</script>"></iframe>',
  ];
  await say(page, hostile.join('\n\n'));
  await turns(page, 1);
  assert.equal(await page.evaluate(() => window.ran), undefined);
  assert.equal(await page.locator('.messages :is(img, script, iframe, [onerror], a[href^="javascript"], a[href^="data"])').count(), 0);
  assert.deepEqual(asked.filter((url) => !url.startsWith(new URL('/', host.ready.page).href)), []);
  assert.deepEqual(page.complaints, []);
});

test('a picture is attached, shown, and sent', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  const png = Buffer.from('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==', 'base64');
  await page.locator('input[type=file]').setInputFiles({ name: 'dot.png', mimeType: 'image/png', buffer: png });
  await page.getByRole('img', { name: 'dot.png' }).waitFor();
  await say(page, 'Look at this');
  await turns(page, 1);
  assert.match((await said(page)).join(), /1 attachments/);
  await page.locator('.message.user').getByRole('img', { name: 'dot.png' }).waitFor();
  // The host does not give pictures back: another page shows that there was one.
  await page.reload();
  await page.locator('.message.user .chip').getByText('image 1').waitFor();
  // A picture can be said instead of what is running, too.
  await say(page, `/slow ${'A long voyage. '.repeat(300)}`);
  await page.getByRole('button', { name: 'Stop the agent' }).waitFor();
  await page.locator('input[type=file]').setInputFiles({ name: 'dot.png', mimeType: 'image/png', buffer: png });
  await message(page).fill('No, look at this');
  await page.getByRole('button', { name: 'Interrupt' }).click();
  await page.locator('.turn-end').getByText('Stopped').waitFor();
  await turns(page, 3);
  assert.match((await said(page)).at(-1), /1 attachments/);
});

test('each session keeps what is written to it until it is sent', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  await say(page, 'Hello');
  await turns(page, 1);
  await message(page).fill('A draft for the main chat');
  await page.getByRole('button', { name: 'Fork' }).click();
  await chatShown(page, 1);
  assert.equal(await message(page).inputValue(), '');
  await message(page).fill('Another for the fork');
  await page.getByRole('button', { name: 'Main' }).click();
  await chatShown(page, 0);
  assert.equal(await message(page).inputValue(), 'A draft for the main chat');
});

test("the agent's program can be ended, and goes on with the next message", async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  await say(page, 'Hello');
  await turns(page, 1);
  await page.getByRole('button', { name: 'More' }).click();
  await page.getByRole('button', { name: 'End the agent' }).click();
  await page.getByText('The agent’s program was ended.').waitFor();
  await say(page, 'On again');
  await turns(page, 2);
  await page.getByText('The agent’s program was ended.').waitFor({ state: 'hidden' });
  assert.deepEqual(page.complaints, []);
});

test('earlier messages come when one scrolls up, and what one reads stays where it is', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  const count = 40;
  for (let turn = 1; turn <= count; turn += 1) await say(page, `/recall ${turn}`);
  await page.locator('.message.user').getByText(`/recall ${count}`, { exact: true }).waitFor();
  await page.waitForFunction(() => document.querySelector('.working').hidden);
  await page.reload();
  await page.locator('.message.user').getByText(`/recall ${count}`, { exact: true }).waitFor();
  const first = page.locator('.message.user').getByText('/recall 1', { exact: true });
  // Only the last messages have elements, as soon as all have arrived.
  await first.waitFor({ state: 'detached' });
  while ((await first.count()) === 0) {
    const shown = await page.locator('.message').count();
    // What is at the top of the view, and how far it is moved by what comes above it.
    const moved = await page.locator('.scroller').evaluate(async (scroller) => {
      scroller.scrollTo(0, 450);
      const message = [...document.querySelectorAll('.message')].find((one) => one.getBoundingClientRect().bottom > 100);
      const before = message.getBoundingClientRect().top;
      scroller.scrollTo(0, 399);
      const wanted = before + 51;
      for (let frame = 0; frame < 30; frame += 1) await new Promise(requestAnimationFrame);
      return message.getBoundingClientRect().top - wanted;
    });
    assert.ok(Math.abs(moved) < 3, `the view has moved by ${moved} pixels`);
    assert.ok((await page.locator('.message').count()) > shown);
  }
  await page.getByRole('button', { name: 'Go to the latest message' }).click();
  await page.locator('.message.user').getByText(`/recall ${count}`, { exact: true }).waitFor();
  assert.deepEqual(page.complaints, []);
});

test('prompts wait in the queue, and an interrupt gives them back', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  await say(page, `/slow ${'A long voyage. '.repeat(300)}`);
  await page.getByRole('button', { name: 'Stop the agent' }).waitFor();
  await say(page, 'The next thing');
  await page.locator('.queue').getByText('The next thing').waitFor();
  await shot(page, 'queue');
  await page.getByRole('button', { name: 'Stop the agent' }).click();
  await page.locator('.turn-end').getByText('Stopped').waitFor();
  await written(page, 'The next thing');
});

test('the page comes in less than 100 kB, is kept, and says what it may do', async (t) => {
  const page = await openPage('');
  let bytes = 0;
  const lazy = new Set();
  const session = await page.context().newCDPSession(page);
  await session.send('Network.enable');
  // What is loaded when the page is idle is no part of its first paint.
  session.on('Network.requestWillBeSent', ({ requestId, request: { url } }) => url.includes('/lazy/') && lazy.add(requestId));
  session.on('Network.loadingFinished', ({ requestId, encodedDataLength }) => (bytes += lazy.has(requestId) ? 0 : encodedDataLength));
  const [answer] = await Promise.all([page.waitForResponse(host.ready.page.replace(/#.*/, '')), page.goto(host.ready.page)]);
  await page.getByRole('button', { name: 'New session' }).first().waitFor();
  t.diagnostic(`${bytes} bytes until the first paint, headers included`);
  assert.ok(bytes > 10_000 && bytes < 100_000, `${bytes} bytes`);
  const headers = answer.headers();
  assert.match(headers['content-security-policy'], /default-src 'none'.*frame-ancestors 'none'/);
  assert.equal(headers['x-content-type-options'], 'nosniff');
  assert.equal(headers['referrer-policy'], 'no-referrer');
});

test('a page of another origin cannot connect, even with the token', async () => {
  for (const path of ['/v2', '/ahp']) {
    const status = await new Promise((resolve, reject) => {
      const headers = { connection: 'Upgrade', upgrade: 'websocket', 'sec-websocket-version': '13', 'sec-websocket-key': 'AAAAAAAAAAAAAAAAAAAAAA==', origin: 'http://evil.example' };
      const asked = request(new URL(`${path}?token=${TOKEN}`, host.ready.page), { headers }, ({ statusCode }) => resolve(statusCode));
      asked.once('upgrade', () => resolve(101));
      asked.once('error', reject);
      asked.end();
    });
    assert.equal(status, 403, path);
  }
});
