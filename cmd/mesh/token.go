package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

func (a *app) tokenCommand() *cobra.Command {
	return group("token", "Create, list and revoke tokens: further keys of a session", a.tokenCreate(), a.tokens().ls("ls", "List the tokens that are good"), a.tokens().completes(a.tokenRevoke()))
}

// token is a line of `mesh token ls --json`. The token itself is only in the answer that creates
// it.
type token struct {
	ID       string             `json:"id"`
	Token    string             `json:"token,omitempty"`
	Session  subjects.SessionID `json:"session"`
	Tools    subjects.Globs     `json:"tools"`
	ReadOnly bool               `json:"read_only"`
	Rate     string             `json:"rate"`
	Created  time.Time          `json:"created"`
	Expires  *time.Time         `json:"expires"`
}

func tokenOf(r registry.TokenRecord) token {
	t := token{ID: r.ID, Session: r.Session, Tools: append(subjects.Globs{}, r.Tools...), ReadOnly: r.ReadOnly, Rate: r.Rate, Created: r.Created}
	if !r.Expires.IsZero() {
		t.Expires = &r.Expires
	}
	return t
}

// until returns for people when the token expires.
func (t token) until() string {
	if t.Expires == nil {
		return "never"
	}
	return localTime(*t.Expires)
}

func (a *app) tokens() noun[token] {
	return noun[token]{
		a: a, name: "token", one: "a token", plural: "tokens",
		id: func(t token) string { return t.ID },
		of: func(_ *link, view *registry.View) []token {
			all := make([]token, 0, 8)
			for _, r := range view.Tokens() {
				if _, good := view.Key(r.Key); good {
					all = append(all, tokenOf(r))
				}
			}
			return all
		},
		missing: func(id string, _ []string) error {
			return refused(toolmesh.OriginMesh, toolmesh.CodeNotFound, "no token %q is good: mesh token ls lists those that are", id)
		},
		none:    "no token was made, or all were revoked or have expired; mesh token create makes one",
		columns: []string{"TOKEN", "SESSION", "TOOLS", "READ-ONLY", "RATE", "EXPIRES"},
		row: func(t token) []string {
			return []string{t.ID, string(t.Session), cmp.Or(strings.Join(t.Tools, ","), "all"), strconv.FormatBool(t.ReadOnly), cmp.Or(t.Rate, "-"), t.until()}
		},
	}
}

func (a *app) tokenCreate() *cobra.Command {
	var rate string
	var readOnly bool
	var globs subjects.Globs
	var lasts time.Duration
	cmd := &cobra.Command{
		Use: "create", Short: "Create a token of a session and print it",
		Long: `Create a token of the session that --session names. A token is the seed of a NATS
key: clients of the gateway send it as "Authorization: Bearer TOKEN", and --nkey takes
it from a file of mode 0600. It is printed once and stored nowhere.

With --tools or --read-only the NATS server permits the token to call only these tools,
without batches and tasks. Its rights are renewed every 5 minutes.`,
		Example: "  mesh token create --session ann\n  mesh token create --session ann --tools 'weather.*,lab.bank.**' --read-only --rate 10/s --expires 30d --json",
		Args:    nothing,
		RunE: runE(func(ctx context.Context, _ []string) error {
			return a.withView(ctx, func(ctx context.Context, l *link, view *registry.View) error {
				r := registry.TokenRecord{Session: l.session, Tools: globs, ReadOnly: readOnly, Rate: rate, Created: l.bus.Time().Now.UTC()}
				if session, ok := view.Session(l.session); ok {
					r.Epoch = session.Epoch
				}
				if lasts > 0 {
					r.Expires = r.Created.Add(lasts)
				}
				seed, err := a.makeToken(ctx, l, &r)
				if err != nil {
					return err
				}
				made := tokenOf(r)
				made.Token = seed
				if a.json {
					a.printJSON(made)
					return nil
				}
				fmt.Fprintln(a.out, seed)
				fmt.Fprintf(a.err, "this is token %s of session %s; mesh token revoke %s ends it; expires: %s\n", r.ID, r.Session, r.ID, made.until())
				return nil
			})
		}),
	}
	cmd.Flags().Func("tools", "let it call only these tools: `GLOB,…`, where * stands for any text without a dot and ** for any", func(text string) (err error) {
		if globs, err = subjects.ParseGlobs(text); err == nil && len(globs) == 0 {
			err = errors.New("it names no tool")
		}
		return err
	})
	cmd.Flags().BoolVar(&readOnly, "read-only", false, "let it call only tools that declare read_only")
	cmd.Flags().Func("rate", "max calls with it at gateways: `N/s`, N/m or N/h (default no maximum)", func(text string) error {
		rate = text
		_, _, err := registry.ParseRate(text)
		return err
	})
	durationFlag(cmd, &lasts, "expires", time.Second, "end it after this `TIME`, such as 720h or 30d (default never)")
	return cmd
}

// makeToken creates a token's key and record.
func (a *app) makeToken(ctx context.Context, l *link, r *registry.TokenRecord) (seed string, err error) {
	records, err := registry.NewStore(l.bus)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "mesh-token-")
	if err != nil {
		return "", fmt.Errorf("make a token: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	return a.newKey(ctx, l, r.Session, filepath.Join(dir, "token.nk"), func(public string) error {
		r.Key, r.ID = public, "tok_"+access.Digest(public)
		return records.CreateToken(ctx, *r)
	}, func(ctx context.Context) error { return records.DeleteToken(ctx, r.Session, r.ID) })
}

func (a *app) tokenRevoke() *cobra.Command {
	return &cobra.Command{
		Use: "revoke ID", Short: "Revoke a token: its connections and streams end", Args: takes(1, 1, "the id of a token"),
		RunE: runE(func(ctx context.Context, args []string) error {
			return a.withView(ctx, func(ctx context.Context, l *link, view *registry.View) error {
				all := view.Tokens()
				i := slices.IndexFunc(all, func(r registry.TokenRecord) bool { return r.ID == args[0] })
				if i < 0 {
					return a.tokens().missing(args[0], nil)
				}
				records, err := registry.NewStore(l.bus)
				if err != nil {
					return err
				}
				if err := records.DeleteToken(ctx, all[i].Session, all[i].ID); err != nil {
					return err
				}
				a.tell(map[string]any{"id": all[i].ID}, "revoked %s", all[i].ID)
				return nil
			})
		}),
	}
}
