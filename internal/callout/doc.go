// Package callout admits the keys of sessions: the NATS server asks about each key that
// its configuration does not name (its auth_callout), and [SessionKeys] answers as long
// as the key's session exists. It reads sessions from the registry; it never creates or
// ends one. Which rights a key gets is decided by package access.
package callout
