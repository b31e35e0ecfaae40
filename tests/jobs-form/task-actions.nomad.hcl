job "task-actions" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      action "one" {
        command = "/bin/echo"
        args = ["a", "b"]
      }
      action "two" {
        command = "/bin/ls"
      }
    }
  }
}
