// An echo server of Go's, linked dynamically by cgo: its socket calls pass libc all the same.
package main

// #include <stdlib.h>
import "C"

import (
	"io"
	"net"
	"os"
)

func main() {
	C.free(C.malloc(1))
	listener, err := net.Listen("tcp4", "127.0.0.1:"+os.Args[1])
	if err != nil {
		panic(err)
	}
	for {
		c, err := listener.Accept()
		if err != nil {
			panic(err)
		}
		go func() { defer c.Close(); io.Copy(c, c) }()
	}
}
