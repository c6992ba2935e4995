//! Call a tool with the key of a session, as a user of nats.rs does: client URL FILE SESSION.

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let (url, file, session) = (&args[1], &args[2], &args[3]);
    let client = async_nats::ConnectOptions::with_nkey(std::fs::read_to_string(file)?)
        .custom_inbox_prefix(format!("_INBOX_{session}"))
        .connect(url)
        .await?;
    let reply = client
        .request(format!("tools.{session}.lab.bank.withdraw"), r#"{"account":"alice","amount":20}"#.into())
        .await?;
    println!("{}", std::str::from_utf8(&reply.payload)?);
    Ok(())
}
