job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
      template {
        data        = <<EOT
listen 80;
{{ if env "TLS" }}
listen 443;
EOT
        destination = "local/x"
      }
    }
  }
}
