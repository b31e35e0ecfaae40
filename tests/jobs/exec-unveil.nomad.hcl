# A task sees the files that it names, and no others.
# prints: reads its own
# prints: Permission denied

job "unveil" {
  type = "batch"

  group "unveil" {
    task "unveil" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo reads its own > /local/x; cat /local/x; cat /etc/hostname /etc/passwd; true"]
        unveil  = ["rx:/bin", "rx:/usr", "rx:/lib", "rx:/lib64", "rwc:/local", "rw:/dev"]
      }
    }
  }
}
