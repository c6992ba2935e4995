// Call a tool with the key of a session, as a user of nats.js does: client.mjs URL FILE SESSION.
import { readFileSync } from "node:fs";
import { connect, nkeyAuthenticator } from "nats";

const [url, file, session] = process.argv.slice(2);
const connection = await connect({
  servers: url, authenticator: nkeyAuthenticator(readFileSync(file)), inboxPrefix: `_INBOX_${session}`, reconnect: false,
});
const reply = await connection.request(`tools.${session}.lab.bank.withdraw`, '{"account":"alice","amount":20}', { timeout: 30_000 });
console.log(reply.string());
await connection.close();
