package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh/registry"
)

// noun is a kind of thing in the registry that commands list and show. T is a line of its JSON.
type noun[T any] struct {
	a      *app
	name   string // "node"
	one    string // "a node"
	plural string // the key of the list's JSON
	id     func(T) string
	of     func(l *link, view *registry.View) []T
	// fresh adds facts that the registry learns late or never. May be nil.
	fresh   func(l *link, ctx context.Context, all []T) ([]T, error)
	missing func(id string, known []string) error
	none    string // printed for an empty list
	columns []string
	row     func(T) []string
	note    func(T) // printed after the table. May be nil
	show    func(T)
}

func (n noun[T]) names(all []T) []string {
	names := make([]string, len(all))
	for i, x := range all {
		names[i] = n.id(x)
	}
	return names
}

func (n noun[T]) find(all []T, id string) (T, error) {
	for _, x := range all {
		if n.id(x) == id {
			return x, nil
		}
	}
	var none T
	return none, n.missing(id, n.names(all))
}

func (n noun[T]) with(ctx context.Context, do func(all []T) error) error {
	return n.a.withView(ctx, func(ctx context.Context, l *link, view *registry.View) error {
		all := n.of(l, view)
		if n.fresh != nil {
			var err error
			if all, err = n.fresh(l, ctx, all); err != nil {
				return err
			}
		}
		return do(all)
	})
}

func (n noun[T]) ls(use, short string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: nothing,
		RunE: runE(func(ctx context.Context, _ []string) error {
			return n.with(ctx, func(all []T) error {
				printAll(n.a, n.plural, all, n.none, n.columns, n.row)
				if n.note != nil && !n.a.json {
					for _, x := range all {
						n.note(x)
					}
				}
				return nil
			})
		}),
	}
}

func (n noun[T]) shows() *cobra.Command {
	return n.completes(&cobra.Command{
		Use: "show " + strings.ToUpper(n.name), Short: "Show one " + n.name, Args: takes(1, 1, n.one),
		RunE: runE(func(ctx context.Context, args []string) error {
			return n.with(ctx, func(all []T) error {
				x, err := n.find(all, args[0])
				switch {
				case err != nil:
					return err
				case n.a.json:
					n.a.printJSON(x)
				default:
					n.show(x)
				}
				return nil
			})
		}),
	})
}

// completes makes a command complete names as its first argument.
func (n noun[T]) completes(cmd *cobra.Command) *cobra.Command {
	return n.a.completes(cmd, func(ctx context.Context, l *link) ([]string, error) {
		view, err := registry.OpenView(ctx, l.bus, nil)
		if err != nil {
			return nil, err
		}
		defer view.Close()
		return n.names(n.of(l, view)), nil
	})
}
