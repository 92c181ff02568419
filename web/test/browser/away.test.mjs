// Pages that are away for a while: frozen, asleep, left and come back to, without a network; and what they tell a person who looks elsewhere.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Host, Network, assertComplete, begin, closeBrowser, message, openPage, say, turns } from './harness.mjs';

/** @type {Host} */
let host;
before(async () => {
  host = await Host.start(['--demo-pace', '2ms', '--demo-slow-pace', '25ms']);
});
after(async () => {
  await closeBrowser();
  await host?.stop();
});

test('a page that was frozen in the background shows all of the answer', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  await say(page, `/slow ${'The tide does not wait. '.repeat(8)}`);
  await page.waitForTimeout(200);
  const session = await page.context().newCDPSession(page);
  await session.send('Page.setWebLifecycleState', { state: 'frozen' });
  await new Promise((resolve) => setTimeout(resolve, 700));
  await session.send('Page.setWebLifecycleState', { state: 'active' });
  await turns(page, 1);
  await assertComplete(host, page);
});

/** Waits until nothing has come for half a second, which takes a moment for what is on its way. */
async function settled(page) {
  const answer = page.locator('.message.agent').last();
  for (let seen = ''; ; await page.waitForTimeout(500)) {
    const now = await answer.innerText();
    if (now === seen) return;
    seen = now;
  }
}

for (const sign of ['visibilitychange', 'online', 'resume']) {
  test(`connections that have died unnoticed are replaced after "${sign}"`, async () => {
    const network = await Network.before(host);
    try {
      const page = await openPage(network.page);
      await begin(page);
      // A panel keeps the connection of AHP in use.
      await page.getByRole('button', { name: 'Files' }).click();
      await page.locator('.entries').waitFor();
      await say(page, `/slow ${'Nobody closed the door. '.repeat(8)}`);
      await page.locator('.message.agent .markdown').waitFor();
      // The panels are loaded when the page is idle: what comes over HTTP is lost, too.
      await page.waitForFunction(() => ['changes', 'diff'].every((name) => performance.getEntriesByType('resource').some((one) => one.name.endsWith(`/src/lazy/${name}.js`))));
      network.lose();
      await settled(page);
      // What a browser says when a phone is taken out of the pocket, and when its network is back.
      await page.evaluate((type) => (type === 'online' ? window : document).dispatchEvent(new Event(type)), sign);
      await turns(page, 1);
      await assertComplete(host, page);
      await page.getByRole('tab', { name: 'Changes' }).click();
      await page.getByText(/changed|Nothing is/).first().waitFor();
      assert.deepEqual(page.complaints, []);
    } finally {
      network.stop();
    }
  });
}

test('a page that one comes back to with the back button goes on where it was', async (t) => {
  const page = await openPage(host.ready.page, { keepsPages: true });
  await begin(page);
  await page.evaluate(() => addEventListener('pageshow', ({ persisted }) => (window.wasKept = persisted)));
  await say(page, `/slow ${'Back and forth. '.repeat(8)}`);
  await page.locator('.message.agent .markdown').waitFor();
  await message(page).fill('A draft');
  await page.goto(new URL('/healthz', host.ready.page).href);
  await page.waitForTimeout(500);
  await page.goBack({ waitUntil: 'commit' });
  await turns(page, 1);
  const wasKept = await page.evaluate(() => window.wasKept === true);
  t.diagnostic(wasKept ? 'the browser has kept the page' : 'the browser has not kept the page, which was loaded again');
  if (wasKept) assert.equal(await message(page).inputValue(), 'A draft');
  await assertComplete(host, page);
});

test('without a network the page says so, and what one sends is sent once when it is back', async () => {
  const network = await Network.before(host);
  const page = await openPage(network.page);
  try {
    await begin(page);
    await page.context().setOffline(true);
    network.stop();
    await page.locator('.banner').getByText('You are offline').waitFor();
    await say(page, 'Said without a network');
  } finally {
    network.stop();
  }
  const again = await Network.before(host, Number(new URL(network.page).port));
  try {
    await page.context().setOffline(false);
    await turns(page, 1);
    await page.locator('.banner').waitFor({ state: 'hidden' });
    assert.equal(await page.locator('.message.user').count(), 1);
    await assertComplete(host, page);
  } finally {
    again.stop();
  }
});

/** A page that keeps what it tells, whose person looks elsewhere. */
async function unseen() {
  const page = await openPage('');
  await page.addInitScript(() => {
    window.told = [];
    document.hasFocus = () => false;
    window.Notification = class {
      static permission = 'default';
      static async requestPermission() {
        return (this.permission = 'granted');
      }
      constructor(title, { body }) {
        window.told.push([title, body]);
      }
      close() {}
    };
  });
  await page.goto(host.ready.page);
  const told = (title) => page.waitForFunction((wanted) => window.told.some(([one]) => one === wanted), title);
  return { page, told };
}

test('who asked for it is told that an approval is wanted, and that a turn has ended', async () => {
  const { page, told } = await unseen();
  await begin(page);
  await say(page, '/run echo quiet');
  await page.locator('.approval').getByRole('button', { name: 'Allow' }).click();
  await turns(page, 1);
  assert.deepEqual(await page.evaluate(() => window.told), [], 'nobody asked for it');
  await page.getByRole('button', { name: 'Notify' }).click();
  await told('Notifications are on');
  await say(page, '/run echo loud');
  await told('Approval wanted');
  await page.locator('.approval').getByRole('button', { name: 'Allow' }).click();
  await told('The agent is done');
  await say(page, '/fail');
  await told('The turn failed');
  await page.evaluate(() => (window.told.length = 0));
  await page.reload();
  await turns(page, 3);
  assert.deepEqual(await page.evaluate(() => window.told), [], 'what was told is not told again');
  assert.deepEqual(page.complaints, []);
});

test('sessions that the page does not show are told of, too', async () => {
  const { page, told } = await unseen();
  await page.getByRole('button', { name: 'Notify' }).click();
  await told('Notifications are on');
  const other = await openPage(host.ready.page);
  await begin(other);
  await say(other, '/run echo elsewhere');
  await other.locator('.approval').waitFor();
  await told('Approval wanted');
  await other.locator('.approval').getByRole('button', { name: 'Deny' }).click();
  await told('The agent is done');
});

test('a browser that cannot notify says so', async () => {
  const page = await openPage('');
  await page.addInitScript(() => {
    window.Notification = class {
      static permission = 'granted';
      static requestPermission = async () => 'granted';
      constructor() {
        throw new TypeError('Illegal constructor');
      }
    };
  });
  await page.goto(host.ready.page);
  await page.getByRole('button', { name: 'Notify' }).click();
  await page.getByRole('button', { name: 'Blocked' }).waitFor();
  assert.deepEqual(page.complaints, []);
});
