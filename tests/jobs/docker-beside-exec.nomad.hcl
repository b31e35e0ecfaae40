# A container and a task of the exec driver share the allocation's directory.
# prints: reader | from a container

job "mixed" {
  type = "batch"

  group "mixed" {
    task "writer" {
      driver = "docker"

      lifecycle {
        hook = "prestart"
      }

      config {
        image   = "busybox:1"
        command = "/bin/sh"
        args    = ["-c", "echo from a container > /alloc/data/note"]
      }
    }

    task "reader" {
      driver = "exec"

      config {
        command = "/bin/cat"
        args    = ["/alloc/data/note"]
      }
    }
  }
}
