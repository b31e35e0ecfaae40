job "task-secret" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      secret "db" {
        provider = "vault"
        path = "secret/data/x"
        config {
          engine = "kv_v2"
        }
        env {
          A = "b"
        }
      }
    }
  }
}
