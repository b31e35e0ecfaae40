# Two groups run beside each other, and their output says whose it is.
# prints: extract | rows
# prints: load | loaded

job "etl" {
  datacenters = ["dc1"]
  type        = "batch"

  group "in" {
    task "extract" {
      driver = "exec"

      config {
        command = "echo"
        args    = ["rows"]
      }
    }
  }

  group "out" {
    task "load" {
      driver = "exec"

      config {
        command = "echo"
        args    = ["loaded"]
      }
    }
  }
}
