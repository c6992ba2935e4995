package access

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// Role is the purpose of a key.
type Role string

// The roles, in the order of their rights.
const (
	Admin  Role = "admin"
	Node   Role = "node"
	Caller Role = "caller" // of the default session
)

// Roles returns all roles.
func Roles() []Role { return []Role{Admin, Node, Caller} }

// Folder is where a mesh's keys are, below its data folder.
func Folder(dataDir string) string { return filepath.Join(dataDir, "keys") }

// File is where the key of a role is: an nkey seed, mode 0600.
func File(dataDir string, role Role) string {
	return filepath.Join(Folder(dataDir), string(role)+".nk")
}

// Keys are the public keys of a mesh's roles.
type Keys map[Role]string

// Inbox is the inbox prefix of a role's connections, without the final dot.
func (r Role) Inbox() string {
	switch r {
	case Admin:
		return subjects.InboxAdmin
	case Node:
		return subjects.InboxNode
	}
	return subjects.SharedInbox
}

// OpenKeys reads the keys in a data folder and makes those that are missing. A key
// that others may read, or that is none, is an error that names the file.
func OpenKeys(dataDir string) (Keys, error) {
	if err := os.MkdirAll(Folder(dataDir), 0o700); err != nil {
		return nil, fmt.Errorf("the folder of keys cannot be made: %w", err)
	}
	keys := make(Keys)
	for _, role := range Roles() {
		path := File(dataDir, role)
		err := ensure(path, nkeys.CreateUser)
		if err == nil {
			keys[role], err = PublicKey(path)
		}
		if err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// CreateSessionKey writes a new key for a session into a new file, and returns its public
// half.
func CreateSessionKey(path string) (public string, err error) {
	err = create(path, nkeys.CreateUser)
	if errors.Is(err, fs.ErrExist) {
		return "", invalid(path, errors.New("the file exists already: move it away, or go to another folder"))
	}
	if err != nil {
		return "", err
	}
	return PublicKey(path)
}

// PublicKey is the public half of the key in a file.
func PublicKey(path string) (string, error) {
	pair, err := Read(path)
	if err != nil {
		return "", err
	}
	defer pair.Wipe()
	return pair.PublicKey()
}

// Digest names a public key where it is shown or kept: in the ids of tokens and in the audit.
func Digest(public string) string {
	sum := sha256.Sum256([]byte(public))
	return hex.EncodeToString(sum[:8])
}

// OpenOwner reads the key that owns a person's indexes from folders, or makes it. The error is
// invalid_request.
func OpenOwner(path string) (nkeys.KeyPair, error) {
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = ensure(path, nkeys.CreateUser)
	}
	if err != nil {
		return nil, invalid(path, fmt.Errorf("it cannot be made, so name a folder for it by XDG_STATE_HOME: %w", err))
	}
	return Read(path)
}

// ensure makes a key unless there is a file of that name. Processes that make it at once all get the
// same one.
func ensure(path string, kind func() (nkeys.KeyPair, error)) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := create(path, kind); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// create writes a new key, whole or not at all, and replaces no file: the error is then
// [fs.ErrExist]. The file has the seed and nothing else, not even the end of a line: libraries of
// NATS take a file for the seed as it is (decision 135).
func create(path string, kind func() (nkeys.KeyPair, error)) error {
	pair, err := kind()
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	defer pair.Wipe()
	seed, err := pair.Seed()
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	defer clear(seed)
	part, err := os.CreateTemp(filepath.Dir(path), ".key-*") // mode 0600
	if err != nil {
		return fmt.Errorf("the key %s cannot be kept: %w", path, err)
	}
	defer func() { _ = os.Remove(part.Name()) }()
	_, err = part.Write(seed)
	err = errors.Join(err, part.Close())
	if err == nil {
		err = os.Link(part.Name(), path) // unlike a renaming, it fails if the file exists
	}
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrPermission) { // a file system without links, as exFAT
		err = writeNew(path, seed)
	}
	if err != nil {
		return fmt.Errorf("the key %s cannot be kept: %w", path, err)
	}
	return nil
}

// writeNew writes a file that must not exist.
func writeNew(path string, data []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Close()); err != nil {
		_ = os.Remove(path)
	}
	return err
}

// Read reads the key in a file: the seed of a NATS user, on a line of its own. The
// error is invalid_request and says what to do: of a file that is missing, that
// others may read, or that holds no such key. It never holds the key.
func Read(path string) (nkeys.KeyPair, error) { return read(path, "SU", "user") }

// read is [Read] of a key of another kind, whose seeds begin with a prefix.
func read(path, prefix, kind string) (nkeys.KeyPair, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, invalid(path, err)
	}
	if mode := info.Mode(); !mode.IsRegular() || mode.Perm()&others(info) != 0 {
		return nil, invalid(path, fmt.Errorf("it is a secret and its mode is %v: chmod 600 it", mode))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, invalid(path, err)
	}
	defer clear(data)
	for line := range bytes.Lines(bytes.TrimPrefix(data, []byte("\ufeff"))) {
		if line = bytes.TrimSpace(line); bytes.HasPrefix(line, []byte(prefix)) {
			pair, err := nkeys.FromSeed(line)
			if err != nil {
				return nil, invalid(path, errors.New("the seed in it is damaged"))
			}
			return pair, nil
		}
	}
	return nil, invalid(path, fmt.Errorf("it holds no seed of a NATS %s, a line that begins with %s", kind, prefix))
}

// Option has a connection prove the key in a file. The file is read at each
// connect and its seed is not kept. Errors are those of [Read].
func Option(path string) (nats.Option, error) {
	pair, err := Read(path)
	if err != nil {
		return nil, err
	}
	defer pair.Wipe()
	public, err := pair.PublicKey()
	if err != nil {
		return nil, invalid(path, err)
	}
	return nats.Nkey(public, func(nonce []byte) ([]byte, error) {
		pair, err := Read(path)
		if err != nil {
			return nil, err
		}
		defer pair.Wipe()
		return pair.Sign(nonce)
	}), nil
}

func invalid(path string, err error) error {
	return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the key %s cannot be used: %w", path, err).
		WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
}
