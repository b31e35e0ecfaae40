// Package ext is what Traefik's module lacks when it comes from a proxy: the places of extensions of its configuration, which its
// own repository replaces by a directory.
package ext

// HTTP extends the HTTP part, by nothing.
type HTTP struct{}

// Router extends a router, by nothing.
type Router struct{}
