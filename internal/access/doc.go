// Package access keeps the keys of a mesh and says, in the NATS server's own
// configuration, what each of them may do. There are three roles: an administrator
// may do all, a node serves tools of any session, a caller uses those of one. What
// they may do is [subjects.Rights]; docs/security.md says what that keeps from whom.
//
// Keys of sessions are in no configuration: the server asks, and [SessionKeys]
// answers for as long as the session goes on. It never makes or ends a session.
package access
