// Names the program, so that go.mod and go.sum say with what it is built.

//go:build tools

package tools

import _ "github.com/summerwind/h2spec/cmd/h2spec"
