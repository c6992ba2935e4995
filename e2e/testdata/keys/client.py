"""Call a tool with the key of a session, as a user of nats-py does: client.py URL FILE SESSION."""

import asyncio
import sys

import nats


async def main(url: str, file: str, session: str) -> None:
    """Connect with the key in a file, call, and print the result."""
    connection = await nats.connect(url, nkeys_seed=file, inbox_prefix=f"_INBOX_{session}".encode(), allow_reconnect=False)
    reply = await connection.request(f"tools.{session}.lab.bank.withdraw", b'{"account":"alice","amount":20}', timeout=30)
    print(reply.data.decode())
    await connection.close()


asyncio.run(main(*sys.argv[1:]))
