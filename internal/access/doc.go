// Package access keeps the keys of a mesh and writes the rights of each key into the NATS server's
// own configuration. There are three roles: an administrator may do everything, a node serves tools
// of any session, a caller uses the tools of one session. [subjects.Rights] lists the subjects that
// each role may publish and subscribe; docs/security.md says what that protects.
//
// The keys of sessions are in no configuration: an [Issuer] answers the server's question
// about such a key. Package callout runs it.
package access
